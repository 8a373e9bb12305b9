#include "statistics/far_pairs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "statistics/accumulator.h"

namespace oscar {
namespace {

constexpr std::int64_t kQueryBlock = 256;
// FP32 scores held at once: what a cache holds; on a GPU, enough to keep it busy.
constexpr std::int64_t kScoreElements = std::int64_t{1} << 22, kGpuScoreElements = kFarScores;

// [T, H, d] of any float type -> [Hkv, g T', d] FP32, the group's heads one after another.
at::Tensor by_group(const at::Tensor& x, std::int64_t kv_heads) {
  const std::int64_t tokens = x.size(0), gqa_group = x.size(1) / kv_heads, d = x.size(2);
  return x.to(at::kFloat).view({tokens, kv_heads, gqa_group, d}).permute({1, 2, 0, 3}).reshape({kv_heads, -1, d});
}

}  // namespace

FarPairAccumulator::FarPairAccumulator(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim,
                                       const FarPairs& pairs, at::Device device)
    : query_heads_(query_heads), kv_heads_(kv_heads), head_dim_(head_dim), pairs_(pairs), device_(device) {}

void FarPairAccumulator::begin_layer(const at::Tensor& o_weight, const LayerMoments* partial) {
  if (!pairs_.enabled) return;
  const auto options = at::TensorOptions(at::kDouble).device(device_);
  head_gram_ = output_projection_gram(o_weight, query_heads_, head_dim_).to(device_);
  const auto [values, vectors] = at::linalg_eigh(head_gram_.cpu());
  factor_ = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(1)).to(device_, at::kFloat).contiguous();
  q_gram_ = at::zeros({kv_heads_, head_dim_, head_dim_}, options);
  pre_q_gram_ = at::zeros({kv_heads_, head_dim_, head_dim_}, options);
  v_weight_ = at::zeros({kv_heads_, head_dim_, head_dim_}, options);
  queries_ = pair_count_ = 0.0;
  if (partial == nullptr || !partial->far_count.defined()) return;
  q_gram_.copy_(partial->far_q_gram);
  pre_q_gram_.copy_(partial->far_pre_q_gram);
  v_weight_.copy_(partial->far_v_weight);
  queries_ = partial->far_count[0].item<double>();
  pair_count_ = partial->far_count[1].item<double>();
}

void FarPairAccumulator::add(const AttentionInput& input, const at::Tensor& output, const Unrotation::Rows& rows) {
  if (!pairs_.enabled) return;
  std::int64_t offset = 0;
  for (const std::int64_t length : input.batch->lengths) {
    if (length > pairs_.sink + pairs_.recent) add_sequence(input, output, rows, offset, length);
    offset += length;
  }
}

void FarPairAccumulator::add_sequence(const AttentionInput& input, const at::Tensor& output,
                                      const Unrotation::Rows& rows, std::int64_t offset, std::int64_t length) {
  const std::int64_t gqa_group = query_heads_ / kv_heads_, d = head_dim_, window = input.sliding_window;
  const at::Tensor k = input.k.narrow(0, offset, length).to(at::kFloat).transpose(0, 1).contiguous();  // [Hkv, T, d]
  const at::Tensor v = input.v.narrow(0, offset, length).to(at::kFloat).transpose(0, 1);
  // Values and outputs in coordinates where |x| is |W_O x| of the query head: [Hkv, g, T, d].
  const at::Tensor factor = factor_.view({kv_heads_, gqa_group, d, d});
  const at::Tensor u = at::matmul(v.unsqueeze(1), factor), u_norm = u.square().sum(-1);
  const std::int64_t block = std::clamp<std::int64_t>(
      (device_.is_cuda() ? kGpuScoreElements : kScoreElements) / (query_heads_ * length), 16, kQueryBlock);
  const at::TensorOptions index = at::TensorOptions().dtype(at::kLong).device(device_);
  for (std::int64_t first = pairs_.sink + pairs_.recent; first < length; first += block) {
    const std::int64_t count = std::min(block, length - first), reach = first + count;
    const at::Tensor q = by_group(input.q.narrow(0, offset + first, count), kv_heads_);  // [Hkv, g C, d]
    const at::Tensor keys = k.narrow(1, 0, reach);
    at::Tensor p = at::bmm(q, keys.transpose(1, 2)).view({kv_heads_, gqa_group, count, reach});
    p.mul_(input.scale);
    if (input.soft_cap > 0.0) p.div_(input.soft_cap).tanh_().mul_(input.soft_cap);
    const at::Tensor i = at::arange(first, reach, index).unsqueeze(1), j = at::arange(reach, index).unsqueeze(0);
    at::Tensor hidden = j.gt(i), far = j.le(i - pairs_.recent).logical_and_(j.ge(pairs_.sink));
    if (window > 0) {
      hidden.logical_or_((i - j).ge(window));
      far.logical_and_((i - j).lt(window));
    }
    if (input.chunk > 0) {
      const at::Tensor before = j.lt(at::floor_divide(i, input.chunk) * input.chunk);
      hidden.logical_or_(before);
      far.logical_and_(before.logical_not());
    }
    p.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    if (input.sinks.defined()) {
      const at::Tensor sinks = input.sinks.to(at::kFloat).view({kv_heads_, gqa_group, 1, 1});
      p = at::softmax(at::cat({p, sinks.expand({kv_heads_, gqa_group, count, 1})}, -1), -1)
              .narrow(-1, 0, reach)
              .contiguous();
    } else {
      p = at::softmax(p, -1);
    }
    p.square_().mul_(far.to(at::kFloat));  // p_ij^2 of the far pairs
    const at::Tensor o =
        by_group(output.narrow(0, offset + first, count), kv_heads_).view({kv_heads_, gqa_group, count, d});
    const at::Tensor w = at::matmul(o, factor);
    const at::Tensor keys_u = u.narrow(2, 0, reach);
    at::Tensor distance = at::matmul(w, keys_u.transpose(2, 3)).mul_(-2.0);  // |W (v_j - o_i)|^2
    distance.add_(w.square().sum(-1, true)).add_(u_norm.narrow(2, 0, reach).unsqueeze(2)).clamp_min_(0.0);
    const at::Tensor seen = p.sum(-1);                  // [Hkv, g, C] sum_j p_ij^2
    const at::Tensor moved = distance.mul_(p).sum(-1);  // sum_j w_ij
    const at::Tensor weighted = q * moved.view({kv_heads_, gqa_group * count, 1}).sqrt();
    q_gram_.add_(at::bmm(weighted.transpose(1, 2), weighted).to(at::kDouble), input.scale * input.scale);
    const at::Tensor before =
        turned_back(weighted.view({kv_heads_, gqa_group, count, d}), rows.cos.narrow(0, offset + first, count),
                    rows.sin.narrow(0, offset + first, count))
            .view({kv_heads_, gqa_group * count, d});
    pre_q_gram_.add_(at::bmm(before.transpose(1, 2), before).to(at::kDouble), input.scale * input.scale);
    const at::Tensor by_head = seen.sum(-1, false, at::kDouble);  // [Hkv, g]
    v_weight_.add_((head_gram_.view({kv_heads_, gqa_group, d, d}) * by_head.unsqueeze(-1).unsqueeze(-1)).sum(1));
    for (std::int64_t query = first; query < reach; ++query) {  // keys [sink or the first it sees, query - recent]
      const std::int64_t from = std::max(pairs_.sink, input.first_key(query));
      const std::int64_t pairs = std::max<std::int64_t>(query - pairs_.recent - from + 1, 0);
      pair_count_ += static_cast<double>(pairs);
      queries_ += pairs > 0 ? 1.0 : 0.0;
    }
  }
}

void FarPairAccumulator::store(LayerMoments& out) const {
  if (!pairs_.enabled) return;
  out.far_q_gram = q_gram_.cpu().clone();
  out.far_pre_q_gram = pre_q_gram_.cpu().clone();
  out.far_v_weight = v_weight_.cpu().clone();
  out.far_count = at::tensor({queries_, pair_count_}, at::kDouble);
}

void FarPairAccumulator::finish(LayerMoments& out) const {
  store(out);
  if (!pairs_.enabled) return;
  for (at::Tensor* gram : {&out.far_q_gram, &out.far_pre_q_gram, &out.far_v_weight}) {
    *gram = exactly_symmetric(*gram);
  }
}

}  // namespace oscar
