// Pages of layout `uniform`: two-bit codes, one scale and zero point for each token, keys and values apart.
//
// Algebra (K and V rows are s (c - z)):   q.k = s_k (q.c - z_k Q1),  Q1 = sum of q;
//   O = sum_t w_t c_t - sum_t w_t z_t,  w_t = p_t s_v rounded to FP16, the same in both sums, so that its rounding
// error multiplies (c - z) and not c and z apart. Codes are read as FP16 subnormals c 4^f 2^-24 by a mask alone; keys
// absorb 4^-f in the query operand, values in the accumulator's last step. The second sum is one more MMA whose first
// row holds z.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/common/page_layout.h"
#include "kernels/decode/launch_params.h"
#include "kernels/decode/query.cuh"
#include "kernels/decode/warp_state.cuh"

namespace oscar::kernels {

template <int D>
struct CodeWords {
  std::uint32_t w[D / 32];
  __device__ __forceinline__ void load(SharedAddress tile, int lane) {
    if constexpr (D == 64) {
      const uint2 x = load_shared_8(tile + lane * 8);
      w[0] = x.x, w[1] = x.y;
    } else {
#pragma unroll
      for (int plane = 0; plane < D / 128; ++plane) {
        const uint4 x = load_shared_16(tile + plane * 512 + lane * 16);
        w[4 * plane] = x.x, w[4 * plane + 1] = x.y, w[4 * plane + 2] = x.z, w[4 * plane + 3] = x.w;
      }
    }
  }
  // Register with field f of word i, as two FP16 subnormals.
  __device__ __forceinline__ std::uint32_t expand(CodeField f) const {
    const std::uint32_t word = f.field < 5 ? w[f.word] : w[f.word] >> 10;
    return word & (0x00030003u << (2 * field_exponent(f.field)));
  }
};

template <int D_, int NT_>
struct UniformCodes {
  static constexpr int D = D_, NT = NT_;
  static constexpr CodePage kPage{D};
  static constexpr int kTiles = 2, kScoreTiles = 2;  // tiles worked on together
  static constexpr int kScratchBytes = 0;            // shared memory of a warp beside its ring
  static constexpr WeightRange kWeights{32768.0f, 8.0f};

  // What a warp reads of global memory before anything waits.
  struct Query : QueryPairs<D, NT> {
    __device__ __forceinline__ void load(const DecodeLaunch& a, const std::uint32_t* q, int, int, int lane) {
      QueryPairs<D, NT>::load(q, a.group, lane);
    }
  };
  static constexpr int kItemBytes = 0;  // shared memory of a thread block beside its warps'

  std::uint32_t query[NT][D / 16][2];  // FP16: q 2^exponent 4^-field
  float query_sum[NT][2];              // 2^-24 sum of the scaled query, for the lane's two heads
  float score_scale;                   // undoes both scalings, times softmax scale and log2 e

  // scale: softmax scale and log2 e.
  __device__ __forceinline__ void prepare(const DecodeLaunch&, const Query& q, float scale, std::uint8_t*,
                                          SharedAddress, int, int lane) {
    std::uint32_t top = 0;  // non-negative floats compare like their bits
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int step = 0; step < D / 16; ++step)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const std::uint32_t x = q.pair[n][step][r];
          top = max(top, max(x << 16 & 0x7fff0000u, x & 0x7fff0000u));
        }
    const float factor = query_factor(__reduce_max_sync(0xffffffffu, top));
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      float total = 0.0f;
#pragma unroll
      for (int step = 0; step < D / 16; ++step)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const std::uint32_t x = q.pair[n][step][r];
          const float low = low_bf16(x) * factor, high = high_bf16(x) * factor;
          total += low + high;
          const float field = 1.0f / static_cast<float>(1 << (2 * field_exponent(key_field(D, step, 2 * r).field)));
          query[n][step][r] = pack_f16(low * field, high * field);
        }
      head_sums(total * 0x1p-24f, lane, query_sum[n]);
    }
    score_scale = scale * (0x1p24f / factor);
  }

  __device__ __forceinline__ void begin_page(const DecodeLaunch&, SharedAddress, SharedAddress, int) const {}

  // Scores of the tiles from `tile` on, and their scales.
  __device__ __forceinline__ void score(const DecodeLaunch&, float (&s)[kTiles][NT][4], TokenScales<kTiles>& scales,
                                        SharedAddress page, int tile, SharedAddress, int lane) const {
    constexpr int M = kTiles;
    const int g = lane >> 2;
    CodeWords<D> words[M];
#pragma unroll
    for (int m = 0; m < M; ++m) words[m].load(page + kPage.key_codes() + (tile + m) * (kTileTokens * D / 4), lane);
    // Accumulators start at what the zero points take away. With one head tile a second chain of MMAs halves the
    // latency; two are chains enough.
    constexpr int kChains = NT == 1 ? 2 : 1;
    float chain[kChains][M][NT][4];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const SharedAddress token = page + 4 * ((tile + m) * kTileTokens + g);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float2 k = half_pair(load_shared_4(token + kPage.key_params() + 32 * row));
        scales.key[m][row] = k.x * score_scale;
        scales.value[m][row] = half_pair(load_shared_4(token + kPage.value_params() + 32 * row)).x;
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            chain[0][m][n][2 * row + h] = -k.y * query_sum[n][h];
            if (kChains == 2) chain[kChains - 1][m][n][2 * row + h] = 0.0f;
          }
      }
    }
#pragma unroll
    for (int step = 0; step < D / 16; ++step)
#pragma unroll
      for (int m = 0; m < M; ++m) {
        std::uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r] = words[m].expand(key_field(D, step, r));
#pragma unroll
        for (int n = 0; n < NT; ++n) mma_f16(chain[step % kChains][m][n], a, query[n][step][0], query[n][step][1]);
      }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          s[m][n][c] = kChains == 2 ? chain[0][m][n][c] + chain[kChains - 1][m][n][c] : chain[0][m][n][c];
  }

  // b: the weights as operand B.
  __device__ __forceinline__ void accumulate(const DecodeLaunch&, WarpState<D, NT>& state,
                                             const std::uint32_t (&b)[kTiles][NT][2], SharedAddress page, int tile,
                                             SharedAddress, int lane) const {
    constexpr int M = kTiles;
    const int t = lane & 3;
    CodeWords<D> words[M];
#pragma unroll
    for (int m = 0; m < M; ++m) words[m].load(page + kPage.value_codes() + (tile + m) * (kTileTokens * D / 4), lane);
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
        std::uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r] = words[m].expand(value_field(step, r));
#pragma unroll
        for (int n = 0; n < NT; ++n) mma_f16(state.o[n][step], a, b[m][n][0], b[m][n][1]);
      }
      // Rows 0 to 7 alike: the zero points of tokens 2t, 2t + 1 (and 8 more) are the high halves of their pairs.
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const SharedAddress params = page + kPage.value_params() + 8 * ((tile + m) * (kTileTokens / 2) + t);
      const uint2 low = load_shared_8(params), high = load_shared_8(params + 32);
      const std::uint32_t z[4] = {__byte_perm(low.x, low.y, 0x7632), any_content(), __byte_perm(high.x, high.y, 0x7632),
                                  any_content()};
#pragma unroll
      for (int n = 0; n < NT; ++n) mma_f16(state.zeros[n], z, b[m][n][0], b[m][n][1]);
    }
  }

  __device__ __forceinline__ static float2 half_pair(std::uint32_t x) {
    return __half22float2(*reinterpret_cast<const __half2*>(&x));
  }

  __device__ __forceinline__ static int channel_step(const DecodeLaunch&, int step) { return step; }
  // What one unit of the accumulator's row half `upper` of a channel step is worth in the output.
  __device__ __forceinline__ float unit(int step, int upper) const {
    return static_cast<float>(1 << (24 - 2 * field_exponent(value_field(step, upper).field)));
  }
  __device__ __forceinline__ float inverse_unit(const DecodeLaunch&, int step, int upper, int) const {
    return 1.0f / unit(step, upper);
  }

  // state.o in units of the output.
  __device__ __forceinline__ void finish(const DecodeLaunch&, WarpState<D, NT>& state, int lane) const {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float zeros = __shfl_sync(0xffffffffu, state.zeros[n][h], lane & 3);
#pragma unroll
        for (int step = 0; step < D / 16; ++step)
#pragma unroll
          for (int upper = 0; upper < 2; ++upper) {
            float& o = state.o[n][step][2 * upper + h];
            o = o * unit(step, upper) - zeros;
          }
      }
  }
};

}  // namespace oscar::kernels
