#include "statistics/row_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace oscar {

RowGradients::RowGradients(std::int64_t kv_heads, std::int64_t head_dim, const RopeFrequencies& rope,
                           const std::vector<SampledToken>& sample, at::Device device)
    : kv_heads_(kv_heads),
      head_dim_(head_dim),
      turning_(2 * rope.inverse.size(0)),
      squared_scale_(rope.attention_factor * rope.attention_factor),
      device_(device) {
  for (std::size_t row = 0; row < sample.size(); ++row) {
    by_token_.emplace_back(sample[row].token, static_cast<std::int64_t>(row));
  }
  std::sort(by_token_.begin(), by_token_.end());
}

void RowGradients::begin_layer(const LayerMoments* partial) {
  const auto options = at::TensorOptions(at::kFloat).device(device_);
  pre_k_ = at::zeros({static_cast<std::int64_t>(by_token_.size()), kv_heads_, head_dim_}, options);
  v_ = at::zeros_like(pre_k_);
  if (partial == nullptr || !partial->rows_v_squared_gradient.defined()) return;
  pre_k_.copy_(partial->rows_pre_k_squared_gradient);
  v_.copy_(partial->rows_v_squared_gradient);
}

void RowGradients::add(const LayerGradient& gradient, const Step& step, const Unrotation::Rows& rows) {
  std::vector<std::int64_t> from, to;
  const auto begin = std::lower_bound(by_token_.begin(), by_token_.end(), std::pair{step.position, std::int64_t{0}});
  for (auto it = begin; it != by_token_.end() && it->first < step.position + step.tokens; ++it) {
    from.push_back(it->first - step.position);
    to.push_back(it->second);
  }
  if (from.empty()) return;
  const at::Tensor source = at::tensor(at::ArrayRef<std::int64_t>(from), at::kLong).to(device_);
  const at::Tensor target = at::tensor(at::ArrayRef<std::int64_t>(to), at::kLong).to(device_);
  const auto picked = [&](const at::Tensor& x) { return x.index_select(0, source); };
  // k = s R x for channels x that turn: dL/dx = s R^T dL/dk, and undo_rope() gives R^T dL/dk / s.
  at::Tensor before = undo_rope(picked(gradient.k), picked(rows.cos).unsqueeze(1), picked(rows.sin).unsqueeze(1));
  before.narrow(2, 0, turning_).mul_(squared_scale_);
  pre_k_.index_copy_(0, target, before.square());
  v_.index_copy_(0, target, picked(gradient.v).square());
}

void RowGradients::store(LayerMoments& out) const {
  out.rows_pre_k_squared_gradient = pre_k_.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  out.rows_v_squared_gradient = v_.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace oscar
