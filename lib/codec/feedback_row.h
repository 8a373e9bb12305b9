// The step of encoder `feedback` for both layouts: coordinate ascent of the cosine between a row and its codes in the
// block's metric. Single precision, every operation rounded separately (row_math.h). Internal to lib/codec.
#pragma once

#include "codec/codec.h"
#include "codec/row_math.h"

namespace oscar::feedback {

constexpr int kPasses = 2;              // over the channels
constexpr float kLeastGain = 1.00001f;  // smaller gains are rounding errors

// Products in the metric H: <x, x>, <x, v>, <v, v>. The scale of keys is xx / xv, the scale of values xv / vv.
struct Products {
  float xx = 0.0f, xv = 0.0f, vv = 0.0f;
  bool usable() const { return xx > 0.0f && xv > 0.0f && vv > 0.0f; }
};

// out = x H, summed over the rows of H from the first to the last.
OSCAR_INLINE void multiply(const float* x, const float* h, int n, float* out) {
  for (int j = 0; j < n; ++j) out[j] = 0.0f;
  for (int i = 0; i < n; ++i) {
    const float v = x[i];
    const float* row = h + i * n;
    for (int j = 0; j < n; ++j) out[j] += v * row[j];
  }
}

// Channel by channel, moves v[i] by +-step inside [low, high] to the largest xv^2 / vv, which never decreases. If the
// result is not usable(), v is unchanged and has no cosine in this metric.
OSCAR_INLINE Products ascend(const float* x, const float* h, int n, float step, float low, float high, float* v) {
  float hx[kMaxHeadDim], hv[kMaxHeadDim];
  multiply(x, h, n, hx);
  multiply(v, h, n, hv);
  Products p{row_math::fixed_dot(x, hx, n), row_math::fixed_dot(v, hx, n), row_math::fixed_dot(v, hv, n)};
  if (!p.usable()) return p;
  const Products start = p;
  float before[kMaxHeadDim];
  std::memcpy(before, v, static_cast<std::size_t>(n) * sizeof(float));
  for (int pass = 0; pass < kPasses; ++pass) {
    bool moved = false;
    float a = p.xv, b = p.vv, best = (a * a) / b;
    for (int i = 0; i < n; ++i) {
      const float self = h[i * n + i];
      float move = 0.0f;
      for (const float delta : {-step, step}) {
        const float next = v[i] + delta;
        if (next < low || next > high) continue;
        const float c = a + delta * hx[i], e = (b + (2.0f * delta) * hv[i]) + (delta * delta) * self;
        if (!(c > 0.0f && e > 0.0f)) continue;
        const float score = (c * c) / e;
        if (score > best * kLeastGain) best = score, move = delta;
      }
      if (move == 0.0f) continue;
      moved = true;
      a = a + move * hx[i], b = (b + (2.0f * move) * hv[i]) + (move * move) * self;
      v[i] += move;
      const float* row = h + i * n;
      for (int j = 0; j < n; ++j) hv[j] += move * row[j];
    }
    p.xv = row_math::fixed_dot(v, hx, n), p.vv = row_math::fixed_dot(v, hv, n);
    if (!moved || !p.usable()) break;
  }
  // The running sums are rounded, so the score is recomputed from the codes themselves.
  if (p.usable() && (p.xv * p.xv) / p.vv >= (start.xv * start.xv) / start.vv) return p;
  std::memcpy(v, before, static_cast<std::size_t>(n) * sizeof(float));
  return start;
}

}  // namespace oscar::feedback
