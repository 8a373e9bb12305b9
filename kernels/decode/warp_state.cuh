// The softmax state of a warp over up to 8 NT query heads, and its update by the scores of M tiles of 16 tokens. The
// running reference m, the sum l and the output accumulator are private to the warp; warps merge at the end of an item.
#pragma once

#include <cstdint>

#include "kernels/decode/head_fragment.cuh"

namespace oscar::kernels {

inline constexpr float kNoReference = -1e30f;
inline constexpr float kLog2E = 1.4426950408889634f;

template <int D, int NT>
struct WarpState {
  using Head = HeadFragment<NT>;
  static constexpr int kSteps = D / 16;
  float m[2], l[2];              // for the lane's two heads
  float o[kSteps][Head::kSize];  // [channel step], in units of the codes
  float zeros[4];                // sum b: the zero-point term of block b (uniform: block 0)

  __device__ __forceinline__ void clear() {
    m[0] = m[1] = kNoReference;
    l[0] = l[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) zeros[i] = 0.0f;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int k = 0; k < Head::kSize; ++k) o[s][k] = 0.0f;
  }
  // Converts the lane's head i to another reference.
  __device__ __forceinline__ void rescale(int i, float factor) {
    l[i] *= factor;
    Head::scale_sums(zeros, i, factor);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int k = 0; k < Head::kSize; ++k)
        if (Head::head_of(k) == i) o[s][k] *= factor;
  }
};

// Factors that the softmax needs for the lane's tokens of each tile.
template <int M, int NT>
struct TokenScales {
  float key[M]
           [HeadFragment<NT>::kRows];  // factor of the score, times softmax scale and log2 e (soft cap: over the cap)
  float value[M][HeadFragment<NT>::kRows];  // factor from the probability to the weight that multiplies codes
};

// Tokens of the tiles that take part, counted from the first tile's first token.
struct TokenRange {
  int first, last;
  __device__ __forceinline__ bool all(int tokens) const { return first <= 0 && last >= tokens; }
};

// Weights are FP16. The reference m moves only when a weight would leave the range, and then far enough to stay for
// long.
struct WeightRange {
  float limit;  // for the sum of a lane's weights
  float top;    // log2 of the largest weight after a move
};

// Applies key factors, cap and (kLean) mask to the scores before the exponentials, which then see factors of 1. out(m,
// k): true if the token of element k of tile m does not take part.
template <bool kLean, int NT, int M, class Out>
__device__ __forceinline__ void cap_scores(float (&s)[M][4 * NT], TokenScales<M, NT>& token, float soft_cap,
                                           const Out& out) {
  using Head = HeadFragment<NT>;
#pragma unroll
  for (int m = 0; m < M; ++m) {
#pragma unroll
    for (int k = 0; k < Head::kSize; ++k) {
      s[m][k] *= token.key[m][Head::row_of(k)];
      // tanh x = 1 - 2 / (e^2x + 1): absolute error below 1e-6, and the cap multiplies an absolute error.
      if (!kLean || soft_cap > 0.0f)
        s[m][k] = soft_cap * (1.0f - __fdividef(2.0f, exp2_approx(2.0f * kLog2E * s[m][k]) + 1.0f));
      if (kLean && out(m, k)) s[m][k] = -INFINITY;
    }
#pragma unroll
    for (int r = 0; r < Head::kRows; ++r) token.key[m][r] = 1.0f;
  }
}

// Scores s -> weights w = p value_scale; also updates l and, if a weight leaves its range, m, l and the accumulators.
// soft_cap: times log2 e; 0: none. take() must read the weights from w; it is called again if the reference has moved.
// kLean: for many tiles and few registers. Cap and mask are one branch before the exponentials, and later steps do not
// wait for the vote. It is slower if there are enough registers (H200: `uniform` 8 % with two head tiles).
template <bool kLean, int D, int NT, int M, class Take>
__device__ __forceinline__ void softmax_weights(WarpState<D, NT>& state, float (&s)[M][4 * NT], float (&w)[M][4 * NT],
                                                TokenScales<M, NT>& token, float soft_cap, const TokenRange& range,
                                                const WeightRange weights, int lane, Take&& take) {
  using Head = HeadFragment<NT>;
  constexpr int K = Head::kSize;
  const bool masked = !range.all(16 * M);
  const auto out = [&](int m, int k) {
    const int position = 16 * m + Head::row(Head::row_of(k), lane);
    return position < range.first || position >= range.last;
  };
  if (soft_cap > 0.0f || (kLean && masked)) cap_scores<kLean, NT, M>(s, token, soft_cap, out);
  float p[M][K];
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int k = 0; k < K; ++k)
      p[m][k] = exp2_approx(fmaf(s[m][k], token.key[m][Head::row_of(k)], -state.m[Head::head_of(k)]));
  if (!kLean && masked) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int k = 0; k < K; ++k)
        if (out(m, k)) p[m][k] = 0.0f;
  }
#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int k = 0; k < K; ++k) w[m][k] = p[m][k] * token.value[m][Head::row_of(k)];
  // Weights are not negative, so none leaves the range while their sum does not. (Maxima would use the integer pipe,
  // which is busy with the expansion of codes, so sums are used.) Without a reference the weights are infinite or NaN.
  const float total = Head::lane_sum(w, 0) + Head::lane_sum(w, 1);
  float sums[2];
  if constexpr (kLean) {
    sums[0] = Head::lane_sum(p, 0), sums[1] = Head::lane_sum(p, 1);
    take();
  }
  if (__any_sync(0xffffffffu, !(total <= weights.limit))) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float highest = -INFINITY;  // log2 of the largest weight, plus reference
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int k = 0; k < K; ++k) {
          if (Head::head_of(k) != i) continue;
          s[m][k] *= token.key[m][Head::row_of(k)];
          if (!kLean && masked && out(m, k)) s[m][k] = -INFINITY;
          highest = fmaxf(highest, s[m][k] + __log2f(fmaxf(token.value[m][Head::row_of(k)], 0x1p-24f)));
        }
      highest = Head::over_head(highest, [](float x, float y) { return fmaxf(x, y); });
      const float reference = fmaxf(state.m[i], highest - weights.top);
      state.rescale(i, exp2_approx(state.m[i] - reference));
      state.m[i] = reference;
#pragma unroll
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int k = 0; k < K; ++k) {
          if (Head::head_of(k) != i) continue;
          p[m][k] = exp2_approx(s[m][k] - reference);
          w[m][k] = p[m][k] * token.value[m][Head::row_of(k)];
        }
      if constexpr (kLean) sums[i] = Head::lane_sum(p, i);
    }
    if constexpr (kLean) take();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) state.l[i] += kLean ? sums[i] : Head::lane_sum(p, i);
  if constexpr (!kLean) take();
}

}  // namespace oscar::kernels
