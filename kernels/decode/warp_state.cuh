// The softmax state of a warp over up to 8 NT query heads, and its update by the scores of M tiles of 16 tokens. The
// running reference m, the sum l and the output accumulator are private to the warp: warps meet at the end of an item.
#pragma once

#include <cstdint>

#include "kernels/decode/mma.cuh"

namespace oscar::kernels {

inline constexpr float kNoReference = -1e30f;
inline constexpr float kLog2E = 1.4426950408889634f;

template <int D, int NT>
struct WarpState {
  static constexpr int kSteps = D / 16;
  // Heads of a lane: 8 n + 2 t and 8 n + 2 t + 1 of column tile n.
  float m[NT][2], l[NT][2];
  float o[NT][kSteps][4];  // [channel step][row g: two heads, row g + 8: two heads], in units of the codes
  float zeros[NT][4];      // row b: what the zero points of block b (uniform: block 0) take away

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

// What the softmax needs to know of the lane's tokens, rows g and g + 8 of each tile.
template <int M>
struct TokenScales {
  float key[M][2];    // factor of the score, times softmax scale and log2 e (with a soft cap: over the cap)
  float value[M][2];  // factor between the probability and the weight that multiplies codes
};

// Tokens of the tiles that take part, counted from the first tile's first token.
struct TokenRange {
  int first, last;
  __device__ __forceinline__ bool all(int tokens) const { return first <= 0 && last >= tokens; }
};

// Weights are FP16: the reference m moves only when one would leave its range, and then far enough to stay for long.
struct WeightRange {
  float limit;  // of the sum of a lane's weights
  float top;    // log2 of the largest weight after a move
};

// Scores s -> weights w = p value_scale; l and, where a weight leaves its range, m, l, the accumulators and the weights
// that wait move. waiting: [tile][head tile][row half], FP16 pairs of the lane's two heads.
// soft_cap: times log2 e; 0: none.
template <int D, int NT, int M, int kWaiting>
__device__ __forceinline__ void softmax_weights(WarpState<D, NT>& state, float (&s)[M][NT][4], float (&w)[M][NT][4],
                                                TokenScales<M>& token, float soft_cap, const TokenRange& range,
                                                const WeightRange weights, std::uint32_t (&waiting)[kWaiting][NT][2],
                                                int lane) {
  const int g = lane >> 2;
  const bool masked = !range.all(16 * M);
  if (soft_cap > 0.0f) {
#pragma unroll
    for (int m = 0; m < M; ++m) {
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          // tanh x = 1 - 2 / (e^2x + 1): absolute error below 1e-6, and the cap multiplies an absolute error.
          const float e = exp2_approx(2.0f * kLog2E * (s[m][n][c] * token.key[m][c >> 1]));
          s[m][n][c] = soft_cap * (1.0f - __fdividef(2.0f, e + 1.0f));
        }
      token.key[m][0] = token.key[m][1] = 1.0f;
    }
  }
  float p[M][NT][4];
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) p[m][n][c] = exp2_approx(fmaf(s[m][n][c], token.key[m][c >> 1], -state.m[n][c & 1]));
  if (masked) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int position = 16 * m + g + 8 * (c >> 1);
          if (position < range.first || position >= range.last) p[m][n][c] = 0.0f;
        }
  }
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) w[m][n][c] = p[m][n][c] * token.value[m][c >> 1];
  // Weights are not negative: none leaves the range while their sum does not. (Sums and not maxima, because maxima
  // would go to the integer pipe, which the expansion of codes keeps busy.)
  float total = 0.0f;
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = w[0][n][h] + w[0][n][h + 2];
#pragma unroll
      for (int m = 1; m < M; ++m) sum += w[m][n][h] + w[m][n][h + 2];
      total += sum;
    }
  const float top = state.m[0][0] == kNoReference ? INFINITY : total;
  if (__any_sync(0xffffffffu, top > weights.limit)) {
    float factors[NT][2];
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float highest = -INFINITY;  // log2 of the largest weight, plus reference
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const int position = 16 * m + g + 8 * row, c = 2 * row + h;
            s[m][n][c] *= token.key[m][row];
            if (masked && (position < range.first || position >= range.last)) s[m][n][c] = -INFINITY;
            highest = fmaxf(highest, s[m][n][c] + __log2f(fmaxf(token.value[m][row], 0x1p-24f)));
          }
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2)
          highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, offset));
        const float reference = fmaxf(state.m[n][h], highest - weights.top);
        const float factor = factors[n][h] = exp2_approx(state.m[n][h] - reference);
        state.m[n][h] = reference;
        state.l[n][h] *= factor;
        state.zeros[n][h] *= factor;
#pragma unroll
        for (int step = 0; step < D / 16; ++step) {
          state.o[n][step][h] *= factor;
          state.o[n][step][h + 2] *= factor;
        }
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const int c = 2 * row + h;
            p[m][n][c] = exp2_approx(s[m][n][c] - reference);
            w[m][n][c] = p[m][n][c] * token.value[m][row];
          }
      }
#pragma unroll
    for (int i = 0; i + M < kWaiting; ++i)
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          waiting[i][n][r] = multiply_f16(waiting[i][n][r], pack_f16(factors[n][0], factors[n][1]));
  }
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = p[0][n][h] + p[0][n][h + 2];
#pragma unroll
      for (int m = 1; m < M; ++m) sum += p[m][n][h] + p[m][n][h + 2];
      state.l[n][h] += sum;
    }
}

}  // namespace oscar::kernels
