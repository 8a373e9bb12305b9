// The steps of encoder `feedback` for one group or block in a warp; reference: lib/codec/feedback_row.h.
#pragma once

#include "kernels/quantize/row_ops.cuh"

namespace oscar::kernels::feedback {

inline constexpr int kPasses = 2;              // over the channels
inline constexpr float kLeastGain = 1.00001f;  // smaller gains are rounding errors

// <x, x>, <x, v>, <v, v> in the metric.
struct Products {
  float xx = 0.0f, xv = 0.0f, vv = 0.0f;
  __device__ bool usable() const { return xx > 0.0f && xv > 0.0f && vv > 0.0f; }
};

// out = x H, summed over the rows of H from the first to the last. h: [n, n].
template <int P>
__device__ inline void multiply(const float (&x)[P], const float* h, int n, float (&out)[P]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < P; ++j) out[j] = 0.0f;
#pragma unroll
  for (int k = 0; k < P; ++k) {
#pragma unroll 1
    for (int i = 32 * k; i < min(32 * (k + 1), n); ++i) {
      const float v = __shfl_sync(row::kAll, x[k], i % 32);
#pragma unroll
      for (int j = 0; j < P; ++j) {
        if (lane + 32 * j < n) out[j] = out[j] + v * __ldg(h + i * n + lane + 32 * j);
      }
    }
  }
}

// The move of one channel, and the products after it. Equal in all lanes.
struct Step {
  float move, a, b;
};
__device__ inline Step best_step(float v, float hx, float hv, float self, float step, float low, float high, float a,
                                 float b, float& best) {
  Step s{0.0f, a, b};
#pragma unroll
  for (int sign = -1; sign <= 1; sign += 2) {
    const float delta = static_cast<float>(sign) * step, next = v + delta;
    if (next < low || next > high) continue;
    const float c = a + delta * hx, e = (b + (2.0f * delta) * hv) + (delta * delta) * self;
    if (!(c > 0.0f && e > 0.0f)) continue;
    const float score = (c * c) / e;
    if (score > best * kLeastGain) best = score, s.move = delta;
  }
  if (s.move == 0.0f) return s;
  s.a = a + s.move * hx, s.b = (b + (2.0f * s.move) * hv) + (s.move * s.move) * self;
  return s;
}

// Channel by channel, moves v by +-step inside [low, high] to the largest xv^2 / vv, which never decreases.
template <int P>
__device__ inline Products ascend(const float (&x)[P], const float* h, int n, float step, float low, float high,
                                  float (&v)[P]) {
  const int lane = threadIdx.x % 32;
  float hx[P], hv[P], before[P];
  multiply(x, h, n, hx);
  multiply(v, h, n, hv);
  Products p{row::fixed_dot(x, hx, n), row::fixed_dot(v, hx, n), row::fixed_dot(v, hv, n)};
  if (!p.usable()) return p;
  const Products start = p;
#pragma unroll
  for (int j = 0; j < P; ++j) before[j] = v[j];
#pragma unroll 1
  for (int pass = 0; pass < kPasses; ++pass) {
    bool moved = false;
    float a = p.xv, b = p.vv, best = (a * a) / b;
#pragma unroll
    for (int k = 0; k < P; ++k) {
#pragma unroll 1
      for (int i = 32 * k; i < min(32 * (k + 1), n); ++i) {
        const int owner = i % 32;
        const Step s =
            best_step(__shfl_sync(row::kAll, v[k], owner), __shfl_sync(row::kAll, hx[k], owner),
                      __shfl_sync(row::kAll, hv[k], owner), __ldg(h + i * n + i), step, low, high, a, b, best);
        if (s.move == 0.0f) continue;
        moved = true;
        a = s.a, b = s.b;
        if (lane == owner) v[k] = v[k] + s.move;
#pragma unroll
        for (int j = 0; j < P; ++j) {
          if (lane + 32 * j < n) hv[j] = hv[j] + s.move * __ldg(h + i * n + lane + 32 * j);
        }
      }
    }
    p.xv = row::fixed_dot(v, hx, n), p.vv = row::fixed_dot(v, hv, n);
    if (!moved || !p.usable()) break;
  }
  // The running sums are rounded, so the score is recomputed from the codes themselves.
  if (p.usable() && (p.xv * p.xv) / p.vv >= (start.xv * start.xv) / start.vv) return p;
#pragma unroll
  for (int j = 0; j < P; ++j) v[j] = before[j];
  return start;
}

}  // namespace oscar::kernels::feedback
