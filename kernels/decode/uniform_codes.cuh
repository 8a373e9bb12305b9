// Pages of layout `uniform`: two-bit codes, one scale and zero point per token, separate for keys and values.
//
// Algebra (K and V rows are s (c - z)):   q.k = s_k (q.c - z_k Q1),  Q1 = sum of q;
//   O = sum_t w_t c_t - sum_t w_t z_t,  w_t = p_t s_v rounded to FP16, the same in both sums, so that its rounding
// error multiplies (c - z) and not c and z separately.
// Codes are read as FP16 subnormals c 4^f 2^-24 by only a mask. Keys absorb 4^-f in the query operand, values in the
// accumulator's last step. The second sum is one more MMA whose first row holds z.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/common/fragment_pages.h"
#include "kernels/decode/launch_params.h"
#include "kernels/decode/query.cuh"
#include "kernels/decode/uniform_query.cuh"
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

// kShared: a thread block makes the query once; else every warp makes it.
template <int D_, int NT_, bool kShared>
struct UniformCodes {
  static constexpr int D = D_, NT = NT_;
  static constexpr CodePage kPage{D};
  static constexpr int kTiles = 2;         // tiles processed together
  static constexpr int kScratchBytes = 0;  // shared memory of a warp in addition to its ring
  static constexpr WeightRange kWeights{32768.0f, 8.0f};
  static constexpr bool kLean = false;       // of softmax_weights()
  static constexpr bool kPositions = false;  // logits do not depend on the position of the key

  // What a warp reads from global memory before it waits for anything.
  struct OwnQuery : QueryPairs<D, NT> {
    __device__ __forceinline__ void load(const DecodeLaunch& a, const std::uint32_t* q, int, int, int lane) {
      QueryPairs<D, NT>::load(q, D / 2, 0, a.gqa_group, lane);
    }
  };
  using Shared = UniformQuery<D, NT>;
  using Query = std::conditional_t<kShared, typename Shared::Source, OwnQuery>;
  static constexpr int kItemBytes = kShared ? sizeof(Shared) : 0;  // shared memory per block, beside its warps'

  using Head = HeadFragment<NT>;
  std::uint32_t query[D / 16][Head::kWords];  // FP16: q 2^exponent 4^-field
  float query_sum[2];                         // 2^-24 sum of the scaled query, for the lane's two heads
  float score_scale;                          // undoes both scalings; includes softmax scale and log2 e

  // scale: softmax scale times log2 e. kShared: all threads of the block call it.
  __device__ __forceinline__ void prepare(const DecodeLaunch&, const Query& q, float scale, std::uint8_t* item,
                                          SharedAddress, int warp, int lane) {
    if constexpr (kShared) {
      Shared* shared = reinterpret_cast<Shared*>(item);
      shared->make(q, warp, lane);
      __syncthreads();
      shared->read(query, query_sum, lane);
      score_scale = scale * shared->unscale;
    } else {
      make_query(q, scale, lane);
    }
  }
  __device__ __forceinline__ void make_query(const OwnQuery& q, float scale, int lane) {
    const float factor = q.factor();
    float total[NT] = {};
#pragma unroll
    for (int step = 0; step < D / 16; ++step)
#pragma unroll
      for (int k = 0; k < Head::kWords; ++k) {
        const std::uint32_t x = q.pair[step][k];
        const float low = low_bf16(x) * factor, high = high_bf16(x) * factor;
        total[k % NT] += low + high;
        const float field = 1.0f / static_cast<float>(1 << (2 * field_exponent(key_field(D, step, k / NT * 2).field)));
        query[step][k] = pack_f16(low * field, high * field);
      }
#pragma unroll
    for (int n = 0; n < NT; ++n) total[n] *= 0x1p-24f;
    Head::head_sums(total, lane, query_sum);
    score_scale = scale * (0x1p24f / factor);
  }

  __device__ __forceinline__ void begin_page(const DecodeLaunch&, SharedAddress, SharedAddress, int) const {}

  // Scores of the tiles from `tile` on, and their scales.
  __device__ __forceinline__ void score(const DecodeLaunch&, float (&s)[kTiles][Head::kSize],
                                        TokenScales<kTiles, NT>& scales, SharedAddress page, int tile, SharedAddress,
                                        int lane) const {
    constexpr int M = kTiles;
    CodeWords<D> words[M];
#pragma unroll
    for (int m = 0; m < M; ++m) words[m].load(page + kPage.key_codes() + (tile + m) * (kTileTokens * D / 4), lane);
    // Accumulators start at the zero-point term. With one head tile, a second chain of MMAs halves the latency; with
    // two head tiles there are two chains anyway.
    constexpr int kChains = NT == 1 ? 2 : 1;
    float chain[kChains][M][Head::kSize];
#pragma unroll
    for (int m = 0; m < M; ++m) {
      float zero[Head::kRows];
      token_params(page + kPage.key_params(), tile + m, lane, scales.key[m], zero);
      float none[Head::kRows];
      token_params(page + kPage.value_params(), tile + m, lane, scales.value[m], none);
#pragma unroll
      for (int r = 0; r < Head::kRows; ++r) scales.key[m][r] *= score_scale;
#pragma unroll
      for (int k = 0; k < Head::kSize; ++k) {
        chain[0][m][k] = -zero[Head::row_of(k)] * query_sum[Head::head_of(k)];
        if (kChains == 2) chain[kChains - 1][m][k] = 0.0f;
      }
    }
#pragma unroll
    for (int step = 0; step < D / 16; ++step)
#pragma unroll
      for (int m = 0; m < M; ++m) {
        std::uint32_t a[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r] = words[m].expand(key_field(D, step, r));
        Head::mma(chain[step % kChains][m], a, query[step]);
      }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int k = 0; k < Head::kSize; ++k)
        s[m][k] = kChains == 2 ? chain[0][m][k] + chain[kChains - 1][m][k] : chain[0][m][k];
  }

  // b: the weights as the heads' operand.
  __device__ __forceinline__ void accumulate(const DecodeLaunch&, WarpState<D, NT>& state,
                                             const std::uint32_t (&b)[kTiles][Head::kWords], SharedAddress page,
                                             int tile, SharedAddress, int lane) const {
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
        Head::mma(state.o[step], a, b[m]);
      }
      // All sums are computed in the same way: zero points of tokens 2t, 2t + 1 (and 8 more) are the high halves of
      // their pairs.
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const SharedAddress params = page + kPage.value_params() + 8 * ((tile + m) * (kTileTokens / 2) + t);
      const uint2 low = load_shared_8(params), high = load_shared_8(params + 32);
      const std::uint32_t x = __byte_perm(low.x, low.y, 0x7632), y = __byte_perm(high.x, high.y, 0x7632);
      const std::uint32_t z[4] = {x, Head::kHeadRows ? y : any_content(), y, any_content()};
      Head::mma_sums(state.zeros, z, 0, b[m]);
    }
  }

  // Scales and zero points of the lane's tokens of a tile.
  __device__ __forceinline__ static void token_params(SharedAddress params, int tile, int lane,
                                                      float (&scale)[Head::kRows], float (&zero)[Head::kRows]) {
    const SharedAddress from = params + 4 * (tile * kTileTokens + Head::row(0, lane));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t pair[2];
      if constexpr (Head::kHeadRows) {
        const uint2 two = load_shared_8(from + 32 * half);
        pair[0] = two.x, pair[1] = two.y;
      } else {
        pair[0] = load_shared_4(from + 32 * half);
      }
#pragma unroll
      for (int sub = 0; sub < Head::kSub; ++sub) {
        const float2 x = __half22float2(*reinterpret_cast<const __half2*>(&pair[sub]));
        scale[half * Head::kSub + sub] = x.x, zero[half * Head::kSub + sub] = x.y;
      }
    }
  }

  __device__ __forceinline__ static int channel_step(const DecodeLaunch&, int step) { return step; }
  // The output value of one accumulator unit in row half `upper` of a channel step.
  __device__ __forceinline__ float unit(int step, int upper) const {
    return static_cast<float>(1 << (24 - 2 * field_exponent(value_field(step, upper).field)));
  }
  __device__ __forceinline__ float inverse_unit(const DecodeLaunch&, int step, int upper, int) const {
    return 1.0f / unit(step, upper);
  }

  // Converts state.o to units of the output.
  __device__ __forceinline__ void finish(const DecodeLaunch&, WarpState<D, NT>& state, int lane) const {
    const float zeros[2] = {Head::sum_of(state.zeros, 0, 0, lane), Head::sum_of(state.zeros, 0, 1, lane)};
#pragma unroll
    for (int step = 0; step < D / 16; ++step)
#pragma unroll
      for (int k = 0; k < Head::kSize; ++k) {
        float& o = state.o[step][k];
        o = o * unit(step, Head::half_of(k)) - zeros[Head::head_of(k)];
      }
  }
};

}  // namespace oscar::kernels
