#include "statistics/attention_gradient.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace oscar {
namespace {

// Queries of a block. On a CPU few, so that scores stay in a core's cache and few hidden pairs are computed.
constexpr std::int64_t kGradientBlock = 256, kCpuGradientBlock = 64;
// FP32 scores held at once, as for the far-pair metrics.
constexpr std::int64_t kGradientScores = std::int64_t{1} << 22;

// [C, H, d] of any float type -> [Hkv, g C, d] FP32, the heads of a gqa_group one after another.
at::Tensor grouped(const at::Tensor& x, std::int64_t kv_heads) {
  const std::int64_t count = x.size(0), gqa_group = x.size(1) / kv_heads, d = x.size(2);
  return x.to(at::kFloat).view({count, kv_heads, gqa_group, d}).permute({1, 2, 0, 3}).reshape({kv_heads, -1, d});
}

// And back: [Hkv, g C, d] -> [C, Hq, d].
at::Tensor ungrouped(const at::Tensor& x, std::int64_t count) {
  const std::int64_t kv_heads = x.size(0), gqa_group = x.size(1) / count, d = x.size(2);
  return x.view({kv_heads, gqa_group, count, d}).permute({2, 0, 1, 3}).reshape({count, kv_heads * gqa_group, d});
}

// Keys [0, reach) that the queries [first, first + count) see, in three runs: [0, sink) is near for all of them,
// [sink, mixed) far for all, [mixed, far_end) far for some, and what follows near for all.
struct BlockPairs {
  std::int64_t sink, mixed, far_end, reach;
  at::Tensor far;  // [count, far_end - mixed] FP32, 1 where the pair is far
};

BlockPairs block_pairs(std::int64_t first, std::int64_t count, const FarPairs& pairs, at::Device device) {
  BlockPairs b;
  b.reach = first + count;
  b.sink = std::min(pairs.sink, b.reach);
  b.far_end = std::max(b.sink, b.reach - pairs.recent);
  b.mixed = std::clamp(first - pairs.recent + 1, b.sink, b.far_end);
  const at::TensorOptions index = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor i = at::arange(first, b.reach, index).unsqueeze(1);
  b.far = at::arange(b.mixed, b.far_end, index).unsqueeze(0).le(i - pairs.recent).to(at::kFloat);
  return b;
}

// far, near [Hkv, T, d] += weights^T rows over far and near pairs; weights [Hkv, g C, reach], rows [Hkv, g C, d].
void add_by_pairs(at::Tensor& far, at::Tensor& near, const at::Tensor& weights, const at::Tensor& rows,
                  const BlockPairs& b) {
  const auto add = [&](at::Tensor& sum, std::int64_t from, std::int64_t to, const at::Tensor& mask) {
    if (from >= to) return;
    at::Tensor part = weights.narrow(2, from, to - from);
    if (mask.defined()) {
      const std::int64_t count = mask.size(0), columns = to - from;
      part = (part.reshape({part.size(0), -1, count, columns}) * mask).view({part.size(0), -1, columns});
    }
    sum.narrow(1, from, to - from).baddbmm_(part.transpose(1, 2), rows);
  };
  add(near, 0, b.sink, {});
  add(far, b.sink, b.mixed, {});
  add(far, b.mixed, b.far_end, b.far);
  add(near, b.mixed, b.far_end, 1.0 - b.far);
  add(near, b.far_end, b.reach, {});
}

AttentionGradient of_one_sequence(const AttentionInput& input, const at::Tensor& output, const at::Tensor& gradient,
                                  const FarPairs& pairs, bool queries) {
  const std::int64_t tokens = input.q.size(0), query_heads = input.q.size(1), kv_heads = input.k.size(1);
  const std::int64_t gqa_group = query_heads / kv_heads, window = input.sliding_window, chunk = input.chunk;
  const at::Tensor k = input.k.to(at::kFloat).transpose(0, 1).contiguous();  // [Hkv, T, d]
  const at::Tensor v = input.v.to(at::kFloat).transpose(0, 1).contiguous();
  AttentionGradient out;
  if (queries) out.q = at::empty(input.q.sizes(), input.q.options().dtype(at::kFloat));
  at::Tensor far_k = at::zeros_like(k), near_k = at::zeros_like(k);
  at::Tensor far_v = at::zeros_like(v), near_v = at::zeros_like(v);
  const std::int64_t block =
      std::clamp<std::int64_t>((input.q.is_cuda() ? kFarScores : kGradientScores) / (query_heads * tokens), 16,
                               input.q.is_cuda() ? kGradientBlock : kCpuGradientBlock);
  const at::TensorOptions index = at::TensorOptions().dtype(at::kLong).device(input.q.device());
  for (std::int64_t first = 0; first < tokens; first += block) {
    const std::int64_t count = std::min(block, tokens - first), reach = first + count;
    // [Hkv, g C, d], times the scale: what keys are multiplied by, and what their gradients add up.
    const at::Tensor q = grouped(input.q.narrow(0, first, count), kv_heads) * input.scale;
    const at::Tensor g = grouped(gradient.narrow(0, first, count), kv_heads);
    const at::Tensor o = grouped(output.narrow(0, first, count), kv_heads);
    const at::Tensor keys = k.narrow(1, 0, reach), values = v.narrow(1, 0, reach);
    at::Tensor scores = at::bmm(q, keys.transpose(1, 2));
    at::Tensor slope;  // of the soft cap
    if (input.soft_cap > 0.0) {
      scores.div_(input.soft_cap).tanh_();
      slope = 1.0 - scores.square();
      scores.mul_(input.soft_cap);
    }
    // Without a window or chunks only the block's own columns are hidden from some of its queries.
    const std::int64_t from = input.sees_all() ? first : 0;
    const at::Tensor i = at::arange(first, reach, index).unsqueeze(1), j = at::arange(from, reach, index).unsqueeze(0);
    at::Tensor hidden = j.gt(i);
    if (window > 0) hidden.logical_or_((i - j).ge(window));
    if (chunk > 0) hidden.logical_or_(j.lt(at::floor_divide(i, chunk) * chunk));
    scores.view({kv_heads, gqa_group, count, reach})
        .narrow(3, from, reach - from)
        .masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    at::Tensor p;
    if (input.sinks.defined()) {
      const at::Tensor sinks = input.sinks.to(at::kFloat).view({kv_heads, gqa_group, 1, 1});
      const at::Tensor column = sinks.expand({kv_heads, gqa_group, count, 1}).reshape({kv_heads, gqa_group * count, 1});
      p = at::softmax(at::cat({scores, column}, -1), -1).narrow(-1, 0, reach).contiguous();
    } else {
      p = at::_softmax_out(scores, scores, -1, false);  // row by row, in place
    }
    add_by_pairs(far_v, near_v, p, g, block_pairs(first, count, pairs, input.q.device()));
    at::Tensor slope_s = at::bmm(g, values.transpose(1, 2)).sub_((g * o).sum(-1, true)).mul_(p);
    if (slope.defined()) slope_s.mul_(slope);
    if (queries) {
      out.q.narrow(0, first, count).copy_(ungrouped(at::bmm(slope_s, keys).mul_(input.scale), count));
    }
    add_by_pairs(far_k, near_k, slope_s, q, block_pairs(first, count, pairs, input.q.device()));
  }
  out.far_k = far_k.transpose(0, 1).contiguous();
  out.far_v = far_v.transpose(0, 1).contiguous();
  out.k = near_k.add_(far_k).transpose(0, 1).contiguous();
  out.v = near_v.add_(far_v).transpose(0, 1).contiguous();
  return out;
}

}  // namespace

AttentionGradient attention_gradient(const AttentionInput& input, const at::Tensor& output, const at::Tensor& gradient,
                                     const FarPairs& pairs, bool queries) {
  const std::vector<std::int64_t>& lengths = input.batch->lengths;
  if (lengths.size() == 1) return of_one_sequence(input, output, gradient, pairs, queries);
  std::vector<AttentionGradient> parts;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, length); };
    AttentionInput one = input;
    one.q = part(input.q), one.k = part(input.k), one.v = part(input.v);
    if (length > 0) parts.push_back(of_one_sequence(one, part(output), part(gradient), pairs, queries));
    first += length;
  }
  const auto joined = [&](at::Tensor AttentionGradient::*member) {
    std::vector<at::Tensor> all;
    for (const AttentionGradient& part : parts) all.push_back(part.*member);
    return at::cat(all);
  };
  using G = AttentionGradient;
  return {queries ? joined(&G::q) : at::Tensor(), joined(&G::k), joined(&G::v), joined(&G::far_k), joined(&G::far_v)};
}

}  // namespace oscar
