// One tile of 16 tokens against up to 8 NT query heads, in three phases: scores, softmax weights, weighted values. The
// softmax phase is shared by code tiles and BF16 tiles. The state of a warp is the running reference m, the sum l and
// the output accumulator, all private: warps meet only at the end of an item.
// Code size counts: a cold launch reads every instruction from memory, so each phase stands in the program once.
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
#include "kernels/decode/mma.cuh"

namespace oscar::kernels {

// The softmax reference m moves only when a weight would leave FP16's range, and then far enough to stay for long.
inline constexpr float kWeightLimit = 32768.0f;
inline constexpr float kWeightTop = 8.0f;  // log2 of the largest weight after a move
inline constexpr float kNoReference = -1e30f;

template <int D, int NT>
struct WarpState {
  static constexpr int kSteps = D / 16;
  // Heads of a lane: 8 n + 2 t and 8 n + 2 t + 1 of column tile n.
  float m[NT][2], l[NT][2];
  float o[NT][kSteps][4];  // [channel step][row g: two heads, row g + 8: two heads]
  float zeros[NT][4];      // row 0: sum of w z

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      m[n][0] = m[n][1] = kNoReference;
      l[n][0] = l[n][1] = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) zeros[n][i] = 0.0f;
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][s][i] = 0.0f;
    }
  }
};

// The item's query heads as operand B of the code tiles: scaled by 2^exponent 4^-field, FP16. Every warp makes its own
// from global memory: no barrier, and all loads are in flight together.
template <int D, int NT>
struct QueryFragments {
  std::uint32_t f16[NT][D / 16][2];
  float sum[NT][2];  // 2^-24 sum of the scaled query, for the lane's two heads 8 n + 2 t + {0, 1}
  float factor;      // 2^exponent, common to the heads of the group: every field-scaled element stays a normal number

  // q: [group, D] BF16 as pairs. Heads past the group are zero.
  __device__ __forceinline__ void load(const std::uint32_t* q, int group, int lane) {
    const int g = lane >> 2, t = lane & 3;
    std::uint32_t top = 0;  // non-negative floats compare like their bits
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const bool live = 8 * n + g < group;
      const std::uint32_t* row = q + (8 * n + g) * (D / 2) + t;
#pragma unroll
      for (int step = 0; step < D / 16; ++step)
#pragma unroll
        for (int r = 0; r < 2; ++r) f16[n][step][r] = live ? row[8 * step + 4 * r] : 0u;
    }
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int step = 0; step < D / 16; ++step)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const std::uint32_t x = f16[n][step][r];
          top = max(top, max(x << 16 & 0x7fff0000u, x & 0x7fff0000u));
        }
    top = __reduce_max_sync(0xffffffffu, top);
    // Largest element into [2^13, 2^14); the factor is made from the exponent bits.
    factor = top == 0
                 ? 1.0f
                 : __uint_as_float(
                       static_cast<std::uint32_t>(min(max(2 * 127 + 13 - static_cast<int>(top >> 23), 1), 254)) << 23);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      float total = 0.0f;
#pragma unroll
      for (int step = 0; step < D / 16; ++step)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float low = low_bf16(f16[n][step][r]) * factor, high = high_bf16(f16[n][step][r]) * factor;
          total += low + high;
          const float field = 1.0f / static_cast<float>(1 << (2 * field_exponent(key_field(D, step, 2 * r).field)));
          f16[n][step][r] = pack_f16(low * field, high * field);
        }
      total += __shfl_xor_sync(0xffffffffu, total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
      sum[n][0] = __shfl_sync(0xffffffffu, total, 8 * t) * 0x1p-24f;
      sum[n][1] = __shfl_sync(0xffffffffu, total, 8 * t + 4) * 0x1p-24f;
    }
  }
};

template <int D>
struct CodeWords {
  std::uint32_t w[D / 32];
  __device__ __forceinline__ void load(const std::uint8_t* tile, int lane) {
    if constexpr (D == 64) {
      const uint2 x = *reinterpret_cast<const uint2*>(tile + lane * 8);
      w[0] = x.x, w[1] = x.y;
    } else {
#pragma unroll
      for (int plane = 0; plane < D / 128; ++plane) {
        const uint4 x = *reinterpret_cast<const uint4*>(tile + plane * 512 + lane * 16);
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

// What the softmax phase needs to know of the lane's two tokens (rows g and g + 8 of the tile).
struct TokenParams {
  float key_scale[2];  // times softmax scale and log2 e
  float key_zero[2];
  float value_scale[2];
};

// Scores of a code tile: s += c q in field-scaled units; the zero points join in the softmax phase.
template <int D, int NT>
__device__ __forceinline__ void score_codes(float (&s)[NT][4], const QueryFragments<D, NT>& query,
                                            const std::uint8_t* tile, int lane) {
  CodeWords<D> words;
  words.load(tile, lane);
  float odd[NT][4];  // a second chain of MMAs, to halve the latency
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[n][c] = odd[n][c] = 0.0f;
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    std::uint32_t a[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = words.expand(key_field(D, step, r));
#pragma unroll
    for (int n = 0; n < NT; ++n) mma_f16(step % 2 ? odd[n] : s[n], a, query.f16[n][step][0], query.f16[n][step][1]);
  }
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[n][c] += odd[n][c];
}

// Scores of a BF16 tile; q: the item's heads in global memory, [group, D] BF16 as pairs.
template <int D, int NT>
__device__ __forceinline__ void score_window(float (&s)[NT][4], const std::uint32_t* q, int group,
                                             const std::uint8_t* keys, int lane) {
  const int g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[n][c] = 0.0f;
#pragma unroll 2
  for (int step = 0; step < D / 16; ++step) {
    const uint4 a = *reinterpret_cast<const uint4*>(keys + (step * 32 + lane) * 16);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const bool live = 8 * n + g < group;
      const std::uint32_t* row = q + (8 * n + g) * (D / 2) + 8 * step + t;
      mma_bf16(s[n], a, live ? row[0] : 0u, live ? row[4] : 0u);
    }
  }
}

// Scores -> probabilities p and value weights w = p s_v, moving the references where a weight would leave FP16's
// range. first/last: tokens of the tile that take part; masked: whether any does not. soft_cap in units of log2.
template <int D, int NT, bool kSoftCap>
__device__ __forceinline__ void softmax_weights(WarpState<D, NT>& state, float (&s)[NT][4], float (&p)[NT][4],
                                                float (&w)[NT][4], const TokenParams& token,
                                                const float (&query_sum)[NT][2], float soft_cap, bool masked, int first,
                                                int last, int lane) {
  const int g = lane >> 2;
  float top = state.m[0][0] == kNoReference ? INFINITY : 0.0f;
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int row = c >> 1, h = c & 1;
      s[n][c] = fmaf(-token.key_zero[row], query_sum[n][h], s[n][c]);
      if constexpr (kSoftCap) {
        s[n][c] = soft_cap * tanhf(s[n][c] * token.key_scale[row]);
        p[n][c] = exp2_approx(s[n][c] - state.m[n][h]);
      } else {
        p[n][c] = exp2_approx(fmaf(s[n][c], token.key_scale[row], -state.m[n][h]));
      }
    }
  if (masked) {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int position = g + 8 * (c >> 1);
        if (position < first || position >= last) p[n][c] = 0.0f;
      }
  }
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      w[n][c] = p[n][c] * token.value_scale[c >> 1];
      top = fmaxf(top, w[n][c]);
    }
  if (__any_sync(0xffffffffu, top > kWeightLimit)) {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float highest = -INFINITY;  // log2 of the largest weight, plus reference
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int position = g + 8 * row, c = 2 * row + h;
          if constexpr (!kSoftCap) s[n][c] *= token.key_scale[row];
          if (masked && (position < first || position >= last)) s[n][c] = -INFINITY;
          highest = fmaxf(highest, s[n][c] + __log2f(fmaxf(token.value_scale[row], 0x1p-24f)));
        }
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
          highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, offset));
        const float reference = fmaxf(state.m[n][h], highest - kWeightTop);
        const float factor = exp2_approx(state.m[n][h] - reference);
        state.m[n][h] = reference;
        state.l[n][h] *= factor;
        state.zeros[n][h] *= factor;
#pragma unroll
        for (int step = 0; step < D / 16; ++step) {
          state.o[n][step][h] *= factor;
          state.o[n][step][h + 2] *= factor;
        }
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const int c = 2 * row + h;
          p[n][c] = exp2_approx(s[n][c] - reference);
          w[n][c] = p[n][c] * token.value_scale[row];
        }
      }
  }
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    state.l[n][0] += p[n][0] + p[n][2];
    state.l[n][1] += p[n][1] + p[n][3];
  }
}

// Values of a code tile; params: (scale, zero) of its 16 value rows.
template <int D, int NT>
__device__ __forceinline__ void accumulate_codes(WarpState<D, NT>& state, const float (&w)[NT][4],
                                                 const std::uint8_t* tile, const uint2* params, int lane) {
  const int g = lane >> 2, t = lane & 3;
  std::uint32_t b[NT][2];
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    b[n][0] = transpose_8x8(pack_f16(w[n][0], w[n][1]));
    b[n][1] = transpose_8x8(pack_f16(w[n][2], w[n][3]));
  }
  CodeWords<D> words;
  words.load(tile, lane);
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    std::uint32_t a[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = words.expand(value_field(step, r));
#pragma unroll
    for (int n = 0; n < NT; ++n) mma_f16(state.o[n][step], a, b[n][0], b[n][1]);
  }
  // The zero points of tokens 2t, 2t + 1 (and 8 more) are the high halves of their pairs.
  const uint2 low = params[t], high = params[t + 4];
  const std::uint32_t z[4] = {g == 0 ? __byte_perm(low.x, low.y, 0x7632) : 0u, 0u,
                              g == 0 ? __byte_perm(high.x, high.y, 0x7632) : 0u, 0u};
#pragma unroll
  for (int n = 0; n < NT; ++n) mma_f16(state.zeros[n], z, b[n][0], b[n][1]);
}

// Log2 of the factor by which accumulator row half `upper` of a channel step is smaller than the output: 24 for the
// subnormal reading, less 2 for each power of four of the field.
template <int D>
__device__ __forceinline__ constexpr int output_exponent(int step, int upper) {
  return 24 - 2 * field_exponent(value_field(step, upper).field);
}

// Values of a BF16 tile. Weights are split in two BF16 parts, so that the tile is as exact as its values, and scaled to
// join the accumulator of the codes.
template <int D, int NT>
__device__ __forceinline__ void accumulate_window(WarpState<D, NT>& state, const float (&p)[NT][4],
                                                  const std::uint8_t* values, int lane) {
  std::uint32_t high[NT][2], low[NT][2];
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float a = p[n][2 * r], b = p[n][2 * r + 1];
      const std::uint32_t top_part = pack_bf16(a, b);
      high[n][r] = transpose_8x8(top_part);
      low[n][r] = transpose_8x8(pack_bf16(a - low_bf16(top_part), b - high_bf16(top_part)));
    }
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const uint4 a = *reinterpret_cast<const uint4*>(values + (step * 32 + lane) * 16);
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      mma_bf16(o, a, high[n][0], high[n][1]);
      mma_bf16(o, a, low[n][0], low[n][1]);
      constexpr float kOne = 1.0f;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        state.o[n][step][c] =
            fmaf(o[c], kOne / static_cast<float>(1 << output_exponent<D>(step, c >> 1)), state.o[n][step][c]);
      }
    }
  }
}

}  // namespace oscar::kernels
