#include "statistics/kl_moments.h"

#include <ATen/ATen.h>

#include "statistics/accumulator.h"

namespace oscar {

KlAccumulator::KlAccumulator(std::int64_t kv_heads, std::int64_t head_dim, at::Device device)
    : kv_heads_(kv_heads), head_dim_(head_dim), device_(device) {}

void KlAccumulator::begin_layer(const LayerMoments* partial) {
  const auto options = at::TensorOptions(at::kDouble).device(device_);
  for (at::Tensor* gram : {&k_gram_, &pre_k_gram_, &v_gram_}) {
    *gram = at::zeros({kv_heads_, head_dim_, head_dim_}, options);
  }
  probes_ = 0.0;
  if (partial == nullptr || !partial->kl_count.defined()) return;
  k_gram_.copy_(partial->kl_k_gram);
  pre_k_gram_.copy_(partial->kl_pre_k_gram);
  v_gram_.copy_(partial->kl_v_gram);
  probes_ = partial->kl_count[0].item<double>();
}

void KlAccumulator::add(const LayerGradient& gradient, const Unrotation::Rows& rows, std::int64_t probes) {
  add_gram(k_gram_, gradient.far_k);
  add_gram(pre_k_gram_, undo_rope(gradient.far_k, rows.cos.unsqueeze(1), rows.sin.unsqueeze(1)));
  add_gram(v_gram_, gradient.far_v);
  probes_ += static_cast<double>(probes);
}

void KlAccumulator::store(LayerMoments& out) const {
  out.kl_k_gram = k_gram_.cpu().clone();
  out.kl_pre_k_gram = pre_k_gram_.cpu().clone();
  out.kl_v_gram = v_gram_.cpu().clone();
  out.kl_count = at::tensor({probes_}, at::kDouble);
}

void KlAccumulator::finish(LayerMoments& out) const {
  store(out);
  for (at::Tensor* gram : {&out.kl_k_gram, &out.kl_pre_k_gram, &out.kl_v_gram}) *gram = exactly_symmetric(*gram);
}

}  // namespace oscar
