// Moments that transforms are fitted to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fit/targets.h"
#include "statistics/statistics.h"

namespace oscar {

// Moments of rows after RoPE, averaged over the positions at which they will be served, from moments before RoPE.
//
// Low-frequency planes of RoPE hardly rotate within a short prompt. The covariance of keys then looks nearly rank one,
// and directions that look inactive become active at later positions. So C = mean over p of R_p E[x^T x] R_p^T is taken
// over the positions that a cache will hold, whatever the length of the calibration prompts.
//
// Closed form: (R_p x)_i = c_i x_i + s_i (J x)_i with c_i, s_i = cos, sin of theta_i p (times the scale of RoPE), J the
// rotation of each plane by 90 degrees. Products of two entries need only the means of c_i c_j, c_i s_j, s_i c_j and
// s_i s_j over p: sums of cosines and sines of (theta_i +- theta_j) p, which are geometric series.

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

// The input of an error-weighted transform: how the rows of a side vary, and the cost of an error in them.

// One side of one layer, [Hkv, d, d] FP64.
struct SideMoments {
  at::Tensor mean;        // [Hkv, d]: of the rows; rotated: of the keys before RoPE
  at::Tensor covariance;  // about the mean, or about zero if not centered
  // E |error in the layer's output|^2 = tr(error covariance x metric), in the units of residual_power().
  at::Tensor metric;
  bool rotated = false;  // keys: about the mean of keys before RoPE
};

struct MomentChoice {
  ValueTarget value_target = ValueTarget::kExact;
  bool centered = false;  // the covariance is about the mean
  bool rotated = false;   // keys: about the mean of keys before RoPE, at each key's position; requires `served`
  // Keys: rows and metric with RoPE applied for these positions; count 0: as they were collected.
  Positions served;
};

// The metric of errors is that of pairs outside the windows (how an error moves the layer's output once the token is
// quantized) if the statistics have it. For keys it is per token of the layer. Pairs outside the
// windows: Q = mean over their queries of sum_j w_ij q^T q / d; plain: Q^T Q / T. For values, pairs outside the
// windows: mean of sum_heads (sum_j p_ij^2) W_O^T W_O; plain: W_O^T W_O or the value target.
SideMoments side_moments(const Statistics& statistics, std::size_t layer, Side side, const MomentChoice& choice);
// Only the metric, without rows.
at::Tensor side_metric(const Statistics& statistics, std::size_t layer, Side side, const MomentChoice& choice);

// The effect of a key error on the logits of queries, regardless of their weight: the second moment of scale q over all
// queries of the group, [Hkv, d, d]; at the served positions, or as collected.
at::Tensor logit_moment(const Statistics& statistics, std::size_t layer, const Positions& served);

// True if every layer has metrics of at least one query with a key outside the windows.
bool has_far_pairs(const Statistics& statistics);

// Mean squared norm of the residual stream where the attention output is added, by which the next norm divides. It is
// taken over tokens after the windows if the statistics have them. 1 if nothing is known.
double residual_power(const Statistics& statistics, std::size_t layer);

// Makes a covariance definite that rounding left indefinite. With channels scaled to unit deviation, eigenvalues below
// the size of the most negative one are raised to it, since smaller ones are noise. Subtracting large means causes this
// (keys centered before RoPE). `noise`: that size. Undefined if the damped matrix is already definite.
at::Tensor without_noise(const at::Tensor& matrix, double damping, std::int64_t tokens, double& noise);

// Makes a second moment positive definite. It adds damping x the matrix's own diagonal, which commutes with scaling of
// single channels, so outlier channels change nothing. It shrinks the off-diagonal part by d / (tokens + d) for the
// noise of a short sample. Channels that never vary (below 1e-10 of the median diagonal) get 1e-6 of that median.
// `matrix` [d, d] FP64, not all zero.
at::Tensor damped(const at::Tensor& matrix, double damping, std::int64_t tokens);

}  // namespace oscar
