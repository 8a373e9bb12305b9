#include "statistics/residual_energy.h"

#include <ATen/ATen.h>

namespace oscar {

void ResidualAccumulator::begin_layer(const LayerMoments* partial) {
  sums_ = at::zeros({2, 2}, at::TensorOptions(at::kDouble).device(device_));
  if (partial != nullptr && partial->attention_residual.defined()) sums_.copy_(partial->attention_residual);
}

void ResidualAccumulator::add(const SequenceBatch& batch, const at::Tensor& residual) {
  const auto norm = at::linalg_vector_norm(residual, 2, at::IntArrayRef({-1}), false, at::kFloat);
  const at::Tensor square = norm.to(at::kDouble).square_();  // [T]
  const auto add_rows = [&](std::int64_t row, const at::Tensor& rows) {
    at::Tensor energy = sums_[row][0], count = sums_[row][1];
    energy.add_(rows.sum());
    count.add_(static_cast<double>(rows.size(0)));
  };
  add_rows(0, square);
  if (!pairs_.enabled) return;
  const std::int64_t near = pairs_.sink + pairs_.recent;
  std::int64_t offset = 0;
  for (const std::int64_t length : batch.lengths) {
    if (length > near) add_rows(1, square.narrow(0, offset + near, length - near));
    offset += length;
  }
}

void ResidualAccumulator::store(LayerMoments& out) const { out.attention_residual = sums_.cpu().clone(); }

}  // namespace oscar
