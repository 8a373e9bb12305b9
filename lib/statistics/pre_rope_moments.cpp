#include "statistics/pre_rope_moments.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "statistics/accumulator.h"

namespace oscar {

PreRopeAccumulator::PreRopeAccumulator(std::int64_t kv_heads, std::int64_t head_dim, at::Device device)
    : kv_heads_(kv_heads), head_dim_(head_dim), device_(device) {}

void PreRopeAccumulator::begin_layer(const LayerMoments* partial) {
  const auto options = at::TensorOptions(at::kDouble).device(device_);
  q_gram_ = at::zeros({kv_heads_, head_dim_, head_dim_}, options);
  k_gram_ = at::zeros({kv_heads_, head_dim_, head_dim_}, options);
  k_sum_ = at::zeros({kv_heads_, head_dim_}, options);
  if (partial == nullptr || !partial->pre_k_gram.defined()) return;
  q_gram_.copy_(partial->pre_q_gram);
  k_gram_.copy_(partial->pre_k_gram);
  k_sum_.copy_(partial->pre_k_sum);
}

void PreRopeAccumulator::add(const AttentionInput& input, const Unrotation::Rows& rows) {
  const std::int64_t tokens = input.k.size(0), gqa_group = input.q.size(1) / kv_heads_;
  const std::int64_t chunk = device_.is_cuda() ? kGpuChunkRows : kChunkRows;  // bounds the FP32 copies
  const auto before = [&](const at::Tensor& x, std::int64_t first, std::int64_t count) {
    return undo_rope(x.narrow(0, first, count), rows.cos.narrow(0, first, count).unsqueeze(1),
                     rows.sin.narrow(0, first, count).unsqueeze(1));
  };
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    add_gram_about_mean(k_gram_, k_sum_, before(input.k, first, std::min(chunk, tokens - first)));
  }
  const std::int64_t few = std::max<std::int64_t>(1, chunk / gqa_group);
  for (std::int64_t first = 0; first < tokens; first += few) {
    add_gram(q_gram_, before(input.q, first, std::min(few, tokens - first)));
  }
}

void PreRopeAccumulator::store(LayerMoments& out) const {
  out.pre_q_gram = copied_to_cpu(q_gram_);
  out.pre_k_gram = copied_to_cpu(k_gram_);
  out.pre_k_sum = copied_to_cpu(k_sum_);
}

void PreRopeAccumulator::finish(LayerMoments& out) const {
  out.pre_q_gram = exactly_symmetric(q_gram_);
  out.pre_k_gram = exactly_symmetric(k_gram_);
  out.pre_k_sum = k_sum_;
}

at::Tensor pre_rope_key_mean(const Statistics& s, std::size_t layer) {
  if (!s.layers[layer].pre_k_sum.defined()) {
    throw InputError(
        "the statistics hold no moments of keys before RoPE, which centring before RoPE needs: collect them again with "
        "this version, or fit with --center mean");
  }
  return s.layers[layer].pre_k_sum / static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
}

}  // namespace oscar
