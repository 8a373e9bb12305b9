#include "collect/pre_rope_moments.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "collect/accumulator.h"
#include "collect/device_sums.h"

namespace oscar {
namespace {

// Calls fn(rows of x, their rotations) for `size` rows at a time.
template <typename Fn>
void for_rows(const at::Tensor& x, const Unrotation::Rows& rows, std::int64_t size, Fn fn) {
  for (std::int64_t first = 0; first < x.size(0); first += size) {
    const std::int64_t count = std::min(size, x.size(0) - first);
    fn(x.narrow(0, first, count), Unrotation::Rows{rows.cos.narrow(0, first, count), rows.sin.narrow(0, first, count)});
  }
}

}  // namespace

PreRopeAccumulator::PreRopeAccumulator(std::int64_t kv_heads, std::int64_t head_dim, at::Device device)
    : kv_heads_(kv_heads), head_dim_(head_dim), device_(device) {}

void PreRopeAccumulator::begin_layer() {
  const auto options = at::TensorOptions(at::kDouble).device(device_);
  q_gram_ = at::zeros({kv_heads_, head_dim_, head_dim_}, options);
  k_gram_ = at::zeros({kv_heads_, head_dim_, head_dim_}, options);
  k_sum_ = at::zeros({kv_heads_, head_dim_}, options);
}

void PreRopeAccumulator::add(const AttentionInput& input, const Unrotation::Rows& rows) {
  const std::int64_t gqa_group = input.q.size(1) / kv_heads_;
  const std::int64_t chunk = device_.is_cuda() ? kGpuChunkRows : kChunkRows;  // bounds the FP32 copies
  const auto before = [&](const at::Tensor& x, const Unrotation::Rows& at) {
    return undo_rope(x, at.cos.unsqueeze(1), at.sin.unsqueeze(1));
  };
  for_rows(input.k, rows, chunk, [&](const at::Tensor& k, const Unrotation::Rows& at) {
    at::Tensor by_head = device_rows_before(k, kv_heads_, at);
    if (!by_head.defined()) return add_gram_about_mean(k_gram_, k_sum_, before(k, at));
    add_rows_about_mean(k_gram_, k_sum_, by_head);
  });
  const std::int64_t few = std::max<std::int64_t>(1, chunk / gqa_group);
  for_rows(input.q, rows, few, [&](const at::Tensor& q, const Unrotation::Rows& at) {
    const at::Tensor by_head = device_rows_before(q, kv_heads_, at);
    by_head.defined() ? add_rows(q_gram_, by_head) : add_gram(q_gram_, before(q, at));
  });
}

void PreRopeAccumulator::finish(LayerMoments& out) const {
  out.pre_q_gram = exactly_symmetric(q_gram_);
  out.pre_k_gram = exactly_symmetric(k_gram_);
  out.pre_k_sum = k_sum_;
}

}  // namespace oscar
