// Moments of rows after RoPE, averaged over the positions at which they will be served, from moments before RoPE.
//
// Low-frequency planes of RoPE hardly rotate within a short prompt. The covariance of keys then looks nearly rank one,
// and directions that look inactive become active at later positions. So C = mean over p of R_p E[x^T x] R_p^T is taken
// over the positions that a cache will hold, whatever the length of the calibration prompts.
//
// Closed form: (R_p x)_i = c_i x_i + s_i (J x)_i with c_i, s_i = cos, sin of theta_i p (times the scale of RoPE), J the
// rotation of each plane by 90 degrees. Products of two entries need only the means of c_i c_j, c_i s_j, s_i c_j and
// s_i s_j over p: sums of cosines and sines of (theta_i +- theta_j) p, which are geometric series.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "statistics/statistics.h"

namespace oscar {

struct Positions {
  std::int64_t first = 0, count = 0;
};

// Positions at which keys are served from codes in a context of this many tokens: [sink, context - recent). If that is
// empty: [0, context); context 1 is only position 0, which rotates nothing.
Positions served_positions(std::int64_t context, std::int64_t sink, std::int64_t recent);

// (1/n) sum of cos(omega p), sin(omega p) over the positions p; omega FP64 of any shape.
struct MeanPhase {
  at::Tensor cos, sin;
};
MeanPhase mean_phase(const at::Tensor& omega, const Positions& positions);

class PositionAverage {
 public:
  // frequency [P] FP64, 2 P <= head_dim: RoPE rotates the pairs (i, i + P), i < P; channels from 2 P on stay.
  PositionAverage(const at::Tensor& frequency, double scale, std::int64_t head_dim, const Positions& positions);

  at::Tensor mean(const at::Tensor& rows) const;            // x [..., d] -> mean over p of R_p x
  at::Tensor second_moment(const at::Tensor& grams) const;  // A [..., d, d] -> mean over p of R_p A R_p^T
  // Covariance over p of R_p x for constant x [..., d]: mean of R_p x x^T R_p^T minus mean(x) mean(x)^T.
  at::Tensor spread(const at::Tensor& rows) const;

 private:
  at::Tensor rotate_half(const at::Tensor& x, std::int64_t axis) const;  // J along an axis, counted from the end

  std::int64_t pairs_, head_dim_;
  at::Tensor cos_, sin_;     // [d] means
  at::Tensor cc_, cs_, ss_;  // [d, d] means of c_i c_j, c_i s_j, s_i s_j
};

}  // namespace oscar
