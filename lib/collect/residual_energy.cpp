#include "collect/residual_energy.h"

#include <ATen/ATen.h>

namespace oscar {

at::Tensor ResidualAccumulator::Sums::stored() const {
  if (!sums.defined()) return {};
  at::Tensor out = at::empty({2, 2}, sums.options());
  out.select(1, 0).copy_(sums);
  for (int row = 0; row < 2; ++row) out[row][1].fill_(counts[row]);
  return out;
}

ResidualAccumulator::Sums ResidualAccumulator::zeros() const {
  return {at::zeros({2}, at::TensorOptions(at::kDouble).device(device_))};
}

void ResidualAccumulator::begin_layer() {
  energy_ = zeros();
  gain_ = {};
}

void ResidualAccumulator::add(Sums& to, const SequenceBatch& batch, const at::Tensor& values) const {
  const auto add_rows = [&](int row, const at::Tensor& rows) {
    to.sums.select(0, row).add_(rows.sum());
    to.counts[row] += static_cast<double>(rows.size(0));
  };
  add_rows(0, values);
  if (!pairs_.enabled) return;
  const std::int64_t near = pairs_.sink + pairs_.recent;
  std::int64_t offset = 0;
  for (const std::int64_t length : batch.lengths) {
    if (length > near) add_rows(1, values.narrow(0, offset + near, length - near));
    offset += length;
  }
}

void ResidualAccumulator::add(const SequenceBatch& batch, const at::Tensor& residual, const at::Tensor& branch) {
  const auto energy_of = [](const at::Tensor& x) {  // [T] FP64
    return at::linalg_vector_norm(x, 2, at::IntArrayRef({-1}), false, at::kFloat).to(at::kDouble).square_();
  };
  const at::Tensor energy = energy_of(residual);
  add(energy_, batch, energy);
  if (!branch.defined()) return;
  if (!gain_.sums.defined()) gain_ = zeros();
  constexpr double kEpsilon = 1e-6;  // as in norms, for a branch or a stream near zero
  const at::Tensor mean_square = energy_of(branch).div_(static_cast<double>(branch.size(-1))).add_(kEpsilon);
  add(gain_, batch, mean_square.mul_(energy.clamp_min(kEpsilon)).reciprocal_());
}

void ResidualAccumulator::finish(LayerMoments& out) const {
  out.attention_residual = energy_.stored();
  out.attention_gain = gain_.stored();
}

}  // namespace oscar
