// Pages of layout `blocks`: four blocks of D/4 channels with their own width of 0, 1, 2 or 4 bits, the same for all
// heads of the layer, and one scale byte e for each (token, block): x = sigma 2^(e/32) (c + o), o = (1 - 2^w)/2.
//
//   q.k = sum_b sigma_b 2^-i_b 2^(e_b/32) (q'_b.c_b + o_b Q_b),  q' = 2^i q, Q_b = sum of q'_b: the accumulator starts
// at o_b Q_b;
//   O_b = sigma_b (sum_t w_t c_t + o_b sum_t p_t 2^(e/32)),  w_t = p_t 2^(e/32) rounded to FP16; the second sums of all
// blocks are one MMA whose row b is the scales of block b.
// Codes are read as FP16 subnormals by masks, as in uniform_codes.cuh. With rows of codes at nibble or byte boundaries
// of each 16-bit half, a code's exponent is its place inside the byte, e(j) = w j mod 8, the same for all tokens.
// The widths are launch constants; blocks are worked on by falling width (plane_walk.cuh), and whatever belongs to one
// is indexed by its rank: scales, query, accumulators. Channels come back into their order at the end.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/decode/block_query.cuh"
#include "kernels/decode/block_words.cuh"
#include "kernels/decode/launch_params.h"
#include "kernels/decode/plane_walk.cuh"
#include "kernels/decode/query.cuh"
#include "kernels/decode/warp_state.cuh"

namespace oscar::kernels {

template <int D_, int NT_>
struct BlockCodes {
  static constexpr int D = D_, NT = NT_;
  // Worked on together: a whole page, so that the branches on the widths are paid once; scores of half of one where
  // registers lack.
  static constexpr int kTiles = 4, kScoreTiles = NT == 1 ? 4 : 2;
  static constexpr int kBlockSteps = D / 64;             // channel steps of 16 in a block
  static constexpr WeightRange kWeights{2048.0f, 4.0f};  // of p; 2^(e/32) lies between 2^-4 and 2^4
  // A warp's scales of a page, in words, for each half of 32 tokens: keys FP32 [rank][token % 8][token / 8], so that a
  // lane reads its four tokens at once, then values, pairs of FP16 [rank][pair % 4][pair / 4 in the
  // order 0, 2, 1, 3: an operand A as it is read]. The strides between ranks spread the banks.
  static constexpr int kKeyStride = 36, kValueStride = 20, kValueAt = 4 * kKeyStride;
  static constexpr int kHalf = kValueAt + 4 * kValueStride;
  static constexpr int kColumnsAt = 4 * 2 * kHalf;  // bytes; behind the scales: each lane's ScaleColumns, see below
  static constexpr bool kColumnsShared = NT == 2;   // where registers lack
  static constexpr int kScratchBytes = kColumnsAt + (kColumnsShared ? 512 : 0);
  using Shared = BlockQuery<D, NT>;
  using Query = typename Shared::Source;
  static constexpr int kItemBytes = sizeof(Shared);  // shared memory of a thread block beside its warps'

  SharedAddress query;                     // a BlockQuery<D, NT>, the lane's first vector
  std::uint32_t key_widths, value_widths;  // a byte for each rank
  float score_scale;                       // softmax scale and log2 e
  // Of the rank whose scales this lane makes, that of plane lane / 8: bytes of the scratch, and what its key scales are
  // multiplied by.
  struct ScaleColumns {
    std::uint32_t key, value;
    float key_factor;
  };
  ScaleColumns columns;
  int key_scales, value_scales;  // bytes of the scratch from which this lane reads scales of rank 0

  // Called by all threads of the block, which has read the query of the item before.
  __device__ __forceinline__ void prepare(const DecodeLaunch& a, const Query& source, float scale, std::uint8_t* item,
                                          SharedAddress scratch, int warp, int lane) {
    Shared* shared = reinterpret_cast<Shared*>(item);
    shared->make(a, source, warp, lane);
    const int rank = a.key.ranks[lane >> 3];
    columns.key = 4 * (rank * kKeyStride + (lane & 1) * 16 + (lane & 7) / 2);
    columns.value =
        4 * (kValueAt + a.value.ranks[lane >> 3] * kValueStride + (lane & 1) * 8 + (lane & 2) + (lane & 4) / 4);
    key_widths = pinned(a.key.widths(), lane);
    value_widths = held(a.value.widths(), lane);
    score_scale = scale;
    query = pinned(shared_address(item) + 16 * lane, lane);
    keep(columns.key), keep(columns.value);
    key_scales = held(16 * (lane >> 2), lane);
    value_scales = held(4 * kValueAt + 16 * (lane & 3), lane);
    __syncthreads();
    // A lane's four tokens are of one row half.
    columns.key_factor = shared->key_factor[rank] / (lane & 2 ? key_row_factor(D, a.key.width[rank]) : 1.0f);
    if constexpr (kColumnsShared)
      store_shared_16(scratch + kColumnsAt + 16 * lane,
                      make_uint4(columns.key, columns.value, __float_as_uint(columns.key_factor), 0));
  }

  // Scales of a page, once for the warp: a lane takes four tokens of plane lane / 8 in each half. Lanes of planes that
  // the layout does not have write columns that count for nothing.
  __device__ __forceinline__ void begin_page(const DecodeLaunch& a, SharedAddress page, SharedAddress scratch,
                                             int lane) const {
    ScaleColumns to = columns;
    if constexpr (kColumnsShared) {
      const uint4 x = load_shared_16(scratch + kColumnsAt + 16 * lane);
      to = {x.x, x.y, __uint_as_float(x.z)};
    }
    const SharedAddress from = page + (lane >> 3) * kPageTokens + (lane & 7) * 4;
    std::uint32_t bytes[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bytes[half][0] = load_shared_4(from + a.key.scales + 32 * half);
      bytes[half][1] = load_shared_4(from + a.value.scales + 32 * half);
    }
    float key[2][4], value[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scales_of(bytes[half][0], key[half]);
      scales_of(bytes[half][1], value[half]);
    }
    __syncwarp();  // the page before has been read
    const SharedAddress keys = scratch + to.key, values = scratch + to.value;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        store_shared_4(keys + 4 * half * kHalf + 16 * i, __float_as_uint(to.key_factor * key[half][i]));
      store_shared_4(values + 4 * half * kHalf, pack_f16(value[half][0], value[half][1]));
      store_shared_4(values + 4 * half * kHalf + 16, pack_f16(value[half][2], value[half][3]));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void score(const DecodeLaunch& a, float (&s)[kScoreTiles][NT][4],
                                        TokenScales<kScoreTiles>& scales, SharedAddress page, int tile,
                                        SharedAddress scratch, int lane) const {
#pragma unroll
    for (int m = 0; m < kScoreTiles; ++m) {
      scales.key[m][0] = scales.key[m][1] = score_scale;
      scales.value[m][0] = scales.value[m][1] = 1.0f;
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) s[m][n][c] = 0.0f;
    }
    const LaneTile at(lane, tile);
    SharedAddress rank_0 = scratch + key_scales + 4 * kHalf * (tile / 2);
    keep(rank_0);
    each_plane(key_widths, [&]<int W, int kRank>() {
      score_block<W>(s, kRank, page + a.key.codes[kRank], rank_0 + 4 * kKeyStride * kRank, at);
    });
  }

  // weights: probabilities as operand B.
  __device__ __forceinline__ void accumulate(const DecodeLaunch& a, WarpState<D, NT>& state,
                                             const std::uint32_t (&p)[kTiles][NT][2], SharedAddress page, int tile,
                                             SharedAddress scratch, int lane) const {
#pragma unroll
    for (int half = 0; half < kTiles / 2; ++half) {
      // Row b: scales of rank b (b + 4: again); nobody reads rows 8 to 15.
      const int b = lane >> 2 & 3;
      const uint4 four = load_shared_16(scratch + value_scales + 4 * (kHalf * (tile / 2 + half) + kValueStride * b));
      const std::uint32_t low[4] = {four.x, four.y, four.z, four.w},
                          high[4] = {four.y, any_content(), four.w, any_content()};
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        mma_f16(state.zeros[n], low, p[2 * half][n][0], p[2 * half][n][1]);
        mma_f16(state.zeros[n], high, p[2 * half + 1][n][0], p[2 * half + 1][n][1]);
      }
    }
    const LaneTile at(lane, tile);
    SharedAddress rank_0 = scratch + value_scales + 4 * kHalf * (tile / 2);
    keep(rank_0);
    each_plane(value_widths, [&]<int W, int kRank>() {
      accumulate_block<W>(state, p, kRank, page + a.value.codes[kRank], rank_0 + 4 * kValueStride * kRank, at);
    });
  }

  // The accumulators' channel steps, by rank -> those of the head.
  __device__ __forceinline__ static int channel_step(const DecodeLaunch& a, int step) {
    return a.value.block[step / kBlockSteps] * kBlockSteps + step % kBlockSteps;
  }
  __device__ __forceinline__ int exponent(const DecodeLaunch& a, int step, int upper) const {
    return a.value.width[step / kBlockSteps] * (2 * (step % kBlockSteps) + upper) & 7;
  }
  __device__ __forceinline__ float value_sigma(int rank, int lane) const {
    return __uint_as_float(load_shared_4(query - 16 * lane + offsetof(Shared, value_sigma) + 4 * rank));
  }
  __device__ __forceinline__ float inverse_unit(const DecodeLaunch& a, int step, int upper, int lane) const {
    return __fdividef(power_of_two(exponent(a, step, upper) - 24), value_sigma(step / kBlockSteps, lane));
  }

  __device__ __forceinline__ void finish(const DecodeLaunch& a, WarpState<D, NT>& state, int lane) const {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int b = 0; b < 4; ++b)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float offset = 0.5f - 0.5f * static_cast<float>(1 << a.value.width[b]);
          const float sigma = value_sigma(b, lane),
                      sum = offset * __shfl_sync(0xffffffffu, state.zeros[n][h], 4 * b + (lane & 3));
#pragma unroll
          for (int k = 0; k < kBlockSteps; ++k)
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
              const int step = b * kBlockSteps + k;
              float& o = state.o[n][step][2 * upper + h];
              o = sigma * fmaf(o, power_of_two(24 - exponent(a, step, upper)), sum);
            }
        }
  }

 private:
  // 2^(e/32) of four scale bytes. A byte put under the exponent of 2^23 is that plus the byte, and one fused
  // multiply-add takes all but e/32 away, exactly.
  __device__ __forceinline__ static void scales_of(std::uint32_t bytes, float (&scale)[4]) {
    bytes ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = __uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7440 + i));
      scale[i] = exp2_approx(fmaf(x, 0x1p-5f, -(0x1p18f + 4.0f)));
    }
  }

  // pinned() where registers suffice.
  template <class T>
  __device__ __forceinline__ static T held(T x, int lane) {
    return NT == 1 ? pinned(x, lane) : x;
  }

  // scale: the lane's scales of the rank in the first half, tokens g, g + 8, g + 16, g + 24.
  template <int W>
  __device__ __forceinline__ void score_block(float (&s)[kScoreTiles][NT][4], int rank, SharedAddress plane,
                                              SharedAddress scale, const LaneTile& at) const {
    uint4 q[Shared::kVectors];
#pragma unroll
    for (int i = 0; i < Shared::kVectors; ++i)
      q[i] = load_shared_16(query + offsetof(Shared, pairs) + 512 * (rank * Shared::kVectors + i));
    const auto pair = [&](int k, int n, int r) {
      const int word = (k * NT + n) * 2 + r;
      return (&q[word / 4].x)[word % 4];
    };
    float start[NT][4];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const float4 x = load_shared_float4(query + offsetof(Shared, starts) + 512 * (rank * NT + n));
      start[n][0] = x.x, start[n][1] = x.y, start[n][2] = x.z, start[n][3] = x.w;
    }
    BlockWords<D, W> words[kScoreTiles / 2];
#pragma unroll
    for (int half = 0; half < kScoreTiles / 2; ++half) words[half].load_keys(plane, at, 2 * half);
    float acc[kScoreTiles][NT][4];
#pragma unroll
    for (int k = 0; k < kBlockSteps; ++k)
#pragma unroll
      for (int m = 0; m < kScoreTiles; ++m) {
        const BlockWords<D, W>& w = words[m / 2];
        const std::uint32_t codes[4] = {w.key(m % 2, 0, 2 * k), w.key(m % 2, 1, 2 * k), w.key(m % 2, 0, 2 * k + 1),
                                        w.key(m % 2, 1, 2 * k + 1)};
#pragma unroll
        for (int n = 0; n < NT; ++n) {
          if (k == 0) {
            mma_f16(acc[m][n], codes, pair(k, n, 0), pair(k, n, 1), start[n]);
          } else {
            mma_f16(acc[m][n], codes, pair(k, n, 0), pair(k, n, 1));
          }
        }
      }
#pragma unroll
    for (int half = 0; half < kScoreTiles / 2; ++half) {
      const float4 four = load_shared_float4(scale + 4 * kHalf * half);
      const float scales[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            s[2 * half + m][n][c] = fmaf(acc[2 * half + m][n][c], scales[2 * m + (c >> 1)], s[2 * half + m][n][c]);
    }
  }

  // scale: the same of pairs of tokens 2t + {0, 1}, + 8, + 16, + 24.
  template <int W>
  __device__ __forceinline__ static void accumulate_block(WarpState<D, NT>& state,
                                                          const std::uint32_t (&p)[kTiles][NT][2], int rank,
                                                          SharedAddress plane, SharedAddress scale,
                                                          const LaneTile& at) {
#pragma unroll
    for (int half = 0; half < kTiles / 2; ++half) {
      BlockWords<D, W> words;
      words.load_values(plane, at, 2 * half);
      const uint4 four = load_shared_16(scale + 4 * kHalf * half);
      const std::uint32_t scales[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        std::uint32_t weight[NT][2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int n = 0; n < NT; ++n) weight[n][r] = multiply_f16(p[2 * half + m][n][r], scales[2 * r + m]);
#pragma unroll
        for (int k = 0; k < kBlockSteps; ++k) {
          const std::uint32_t codes[4] = {words.value(m, 0, 2 * k), words.value(m, 0, 2 * k + 1),
                                          words.value(m, 1, 2 * k), words.value(m, 1, 2 * k + 1)};
#pragma unroll
          for (int n = 0; n < NT; ++n) mma_f16(state.o[n][rank * kBlockSteps + k], codes, weight[n][0], weight[n][1]);
        }
      }
    }
  }
};

}  // namespace oscar::kernels
