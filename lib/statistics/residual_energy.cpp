#include "statistics/residual_energy.h"

#include <ATen/ATen.h>

#include "statistics/accumulator.h"

namespace oscar {

void ResidualAccumulator::begin_layer(const LayerMoments* partial) {
  sums_ = at::zeros({2}, at::TensorOptions(at::kDouble).device(device_));
  counts_[0] = counts_[1] = 0.0;
  if (partial == nullptr || !partial->attention_residual.defined()) return;
  sums_.copy_(partial->attention_residual.select(1, 0));
  for (int row = 0; row < 2; ++row) counts_[row] = partial->attention_residual[row][1].item<double>();
}

void ResidualAccumulator::add(const SequenceBatch& batch, const at::Tensor& residual) {
  const auto norm = at::linalg_vector_norm(residual, 2, at::IntArrayRef({-1}), false, at::kFloat);
  const at::Tensor square = norm.to(at::kDouble).square_();  // [T]
  const auto add_rows = [&](int row, const at::Tensor& rows) {
    sums_.select(0, row).add_(rows.sum());
    counts_[row] += static_cast<double>(rows.size(0));
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

void ResidualAccumulator::finish(LayerMoments& out) const {
  out.attention_residual = at::empty({2, 2}, sums_.options());
  out.attention_residual.select(1, 0).copy_(sums_);
  for (int row = 0; row < 2; ++row) out.attention_residual[row][1].fill_(counts_[row]);
}

void ResidualAccumulator::store(LayerMoments& out) const {
  finish(out);
  out.attention_residual = copied_to_cpu(out.attention_residual);
}

}  // namespace oscar
