#include "fit/side_moments.h"

#include <ATen/ATen.h>

namespace oscar {

Positions served_positions(std::int64_t context, std::int64_t sink, std::int64_t recent) {
  if (context - recent > sink) return {sink, context - recent - sink};
  return {0, context};
}

MeanPhase mean_phase(const at::Tensor& omega, const Positions& positions) {
  const double n = static_cast<double>(positions.count);
  const at::Tensor half = omega * 0.5, sine = half.sin();
  // sin(n w/2) / (n sin(w/2)), 1 if nothing rotates. RoPE has no frequency of a full rotation per token.
  const at::Tensor still = sine.abs() < 1e-300;
  const at::Tensor size = at::where(still, at::ones_like(omega), (half * n).sin() / (sine.masked_fill(still, 1.0) * n));
  const at::Tensor center = omega * (static_cast<double>(positions.first) + (n - 1.0) * 0.5);
  return {size * center.cos(), size * center.sin()};
}

PositionAverage::PositionAverage(const at::Tensor& frequency, double scale, std::int64_t head_dim,
                                 const Positions& positions)
    : pairs_(frequency.size(0)), head_dim_(head_dim) {
  const std::int64_t rest = head_dim - 2 * pairs_;
  const auto options = at::TensorOptions(at::kDouble);
  const at::Tensor theta = at::cat({frequency, frequency, at::zeros({rest}, options)});
  const at::Tensor size = at::cat({at::full({2 * pairs_}, scale, options), at::ones({rest}, options)});
  const MeanPhase one = mean_phase(theta, positions);
  const MeanPhase plus = mean_phase(theta.unsqueeze(1) + theta.unsqueeze(0), positions);
  const MeanPhase minus = mean_phase(theta.unsqueeze(1) - theta.unsqueeze(0), positions);  // theta_i - theta_j
  const at::Tensor sizes = at::outer(size, size) * 0.5;
  cos_ = one.cos * size, sin_ = one.sin * size;
  cc_ = (minus.cos + plus.cos) * sizes;
  ss_ = (minus.cos - plus.cos) * sizes;
  cs_ = (plus.sin - minus.sin) * sizes;
}

at::Tensor PositionAverage::rotate_half(const at::Tensor& x, std::int64_t axis) const {
  const at::Tensor first = x.narrow(axis, 0, pairs_), second = x.narrow(axis, pairs_, pairs_);
  return at::cat({-second, first, at::zeros_like(x.narrow(axis, 2 * pairs_, head_dim_ - 2 * pairs_))}, axis);
}

at::Tensor PositionAverage::mean(const at::Tensor& rows) const { return rows * cos_ + rotate_half(rows, -1) * sin_; }

at::Tensor PositionAverage::second_moment(const at::Tensor& grams) const {
  const at::Tensor right = rotate_half(grams, -1), left = rotate_half(grams, -2), both = rotate_half(left, -1);
  const at::Tensor sum = grams * cc_ + right * cs_ + left * cs_.t() + both * ss_;
  return (sum + sum.transpose(-1, -2)) * 0.5;
}

at::Tensor PositionAverage::spread(const at::Tensor& rows) const {
  const at::Tensor m = mean(rows);
  return second_moment(rows.unsqueeze(-1) * rows.unsqueeze(-2)) - m.unsqueeze(-1) * m.unsqueeze(-2);
}

}  // namespace oscar
