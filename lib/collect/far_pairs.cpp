#include "collect/far_pairs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/parallel.h"
#include "collect/accumulator.h"
#include "collect/device_sums.h"
#include "model/device.h"

namespace oscar {
namespace {

constexpr std::int64_t kQueryBlock = 256;
// FP32 scores held at once: as many as fit a CPU cache; on a GPU, enough to keep it busy.
constexpr std::int64_t kScoreElements = std::int64_t{1} << 22, kGpuScoreElements = kFarScores;

// [T, H, d] of any float type -> [Hkv, g T, d] FP32, the group's heads one after another.
at::Tensor by_group(const at::Tensor& x, std::int64_t kv_heads) {
  const std::int64_t tokens = x.size(0), gqa_group = x.size(1) / kv_heads, d = x.size(2);
  return x.to(at::kFloat).view({tokens, kv_heads, gqa_group, d}).permute({1, 2, 0, 3}).reshape({kv_heads, -1, d});
}

// Queries whose FP32 products are added one after another on a GPU, and queries per launch.
constexpr std::int64_t kDeviceQueries = 2048, kDeviceLaunch = 2 * kDeviceQueries;

constexpr std::int64_t kNormColumns = 4;  // two of them zero, so that rows are aligned to 16 bytes

// [..., d] -> [..., d + kNormColumns]: each row, its squared length, 1, and zeros.
at::Tensor with_norms(const at::Tensor& rows) {
  const at::Tensor norms = rows.square().sum(-1, true), none = at::zeros_like(norms);
  return at::cat({rows, norms, at::ones_like(norms), none, none}, -1);
}

// [H, d, d] FP32: F with F F^T = G for each G of [H, d, d] FP64, symmetric. F is the Cholesky factor. If G is singular
// (no W_O reads some direction of a head), F comes from its eigenvectors.
at::Tensor factors(const at::Tensor& grams) {
  begin_linear_algebra(grams.device());
  const auto [lower, failed] = at::linalg_cholesky_ex(grams);
  if (!failed.any().item<bool>()) return lower.to(at::kFloat).contiguous();
  const at::Tensor on_cpu = grams.cpu();
  at::Tensor out = at::empty(grams.sizes(), at::kFloat);
  parallel_tasks(grams.size(0), [&](std::int64_t head) {
    const auto [values, vectors] = at::linalg_eigh(on_cpu[head]);
    out[head].copy_(vectors * values.clamp_min(0.0).sqrt().unsqueeze(0));
  });
  return out.to(grams.device());
}

// Positions of `count` queries [C, 1] and of keys [1, columns], each counted from its first.
struct Places {
  at::Tensor query, key;
};
Places places(std::int64_t first, std::int64_t count, std::int64_t step, std::int64_t key, std::int64_t columns,
              at::Device device) {
  const at::TensorOptions index = at::TensorOptions().dtype(at::kLong).device(device);
  return {at::arange(first, first + count * step, step, index).unsqueeze(1),
          at::arange(key, key + columns, index).unsqueeze(0)};
}

// True if a window or a chunk hides the key from the query.
at::Tensor out_of_sight(const Places& at, const AttentionInput& input) {
  if (input.chunk > 0) return at.key.lt(at::floor_divide(at.query, input.chunk) * input.chunk);
  return (at.query - at.key).ge(input.sliding_window);
}

// Keys that some query of a block of `block` queries sees, of a sequence of `length` tokens.
std::int64_t most_visible(const AttentionInput& input, std::int64_t length, std::int64_t block) {
  if (input.sees_all()) return length;
  return std::min(length, block + (input.chunk > 0 ? input.chunk : input.sliding_window));
}

}  // namespace

std::int64_t FarPairs::query_step(std::int64_t length, at::Device device) const {
  const std::int64_t queries = length - sink - recent;
  return device.is_cpu() && queries > cpu_queries ? ((queries - 1) / cpu_queries + 1) | 1 : 1;
}

FarPairAccumulator::FarPairAccumulator(std::int64_t query_heads, std::int64_t kv_heads, std::int64_t head_dim,
                                       const FarPairs& pairs, at::Device device)
    : query_heads_(query_heads), kv_heads_(kv_heads), head_dim_(head_dim), pairs_(pairs), device_(device) {}

void FarPairAccumulator::begin_layer(const at::Tensor& o_weight) {
  if (!pairs_.enabled) return;
  const auto options = at::TensorOptions(at::kDouble).device(device_);
  head_gram_ = output_projection_gram(o_weight, query_heads_, head_dim_).to(device_);
  factor_ = factors(head_gram_);
  q_grams_ = at::zeros({2, kv_heads_, head_dim_, head_dim_}, options);
  q_gram_ = q_grams_[0], pre_q_gram_ = q_grams_[1];
  v_weight_ = at::zeros({kv_heads_, head_dim_, head_dim_}, options);
  queries_ = pair_count_ = 0.0;
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
  const std::int64_t gqa_group = query_heads_ / kv_heads_, d = head_dim_;
  const at::Tensor some = input.v.narrow(0, offset, length), by_head = device_head_rows(some, gqa_group);
  Values values;
  if (by_head.defined()) {
    values.u = at::bmm(by_head, factor_).view({kv_heads_, gqa_group, length, d});
  } else {
    const at::Tensor v = some.to(at::kFloat).transpose(0, 1);
    values.u = at::matmul(v.unsqueeze(1), factor_.view({kv_heads_, gqa_group, d, d}));
  }
  values.center = values.u.mean(2, true);
  if (device_far_pairs_built(input)) return add_sequence_on_device(input, output, rows, values, offset, length);
  const AttentionInput own = with_tokens(input, offset, length);
  const at::Tensor k = with_rope(own.k, own.k_rope).to(at::kFloat).transpose(0, 1).contiguous();  // [Hkv, T, d]
  const at::Tensor u = with_norms(values.u.sub_(values.center)).view({query_heads_, length, d + kNormColumns});
  const std::int64_t step = pairs_.query_step(length, device_);
  const std::int64_t scores = device_.is_cuda() ? kGpuScoreElements : kScoreElements;
  const std::int64_t block = std::clamp<std::int64_t>(
      scores / (query_heads_ * most_visible(input, length, kQueryBlock * step)), 16, kQueryBlock);
  for (std::int64_t first = pairs_.sink + pairs_.recent; first < length; first += block * step) {
    const std::int64_t meant = std::min(block * step, length - first), count = (meant + step - 1) / step;
    const Queries at{offset, first, count, step, static_cast<double>(meant) / static_cast<double>(count)};
    const std::int64_t reach = at.reach();
    // Keys before `begin` are hidden from all queries of the block; those of [from, from + far) are outside the
    // windows of some query.
    const std::int64_t begin = input.first_key(first), columns = reach - begin;
    const std::int64_t from = std::max(pairs_.sink, begin), far = reach - pairs_.recent - from;
    if (far <= 0) continue;
    const at::Tensor q_rope = input.q_rope.defined() ? at.of(input.q_rope) : at::Tensor();
    const at::Tensor q = by_group(with_rope(at.of(input.q), q_rope), kv_heads_);  // [Hkv, g C, d]
    at::Tensor p = at::empty({kv_heads_, gqa_group * count, columns}, q.options());
    p.baddbmm_(q, k.narrow(1, begin, columns).transpose(1, 2), /*beta=*/0, /*alpha=*/input.scale);
    p = weights_of(p.view({kv_heads_, gqa_group, count, columns}), input, at, begin);
    square_far_pairs(p, at, begin);
    const at::Tensor w = targets(output, at).sub_(values.center);
    const at::Tensor sums =
        at::bmm(p.view({query_heads_, count, columns}).narrow(2, from - begin, far), u.narrow(1, from, far))
            .view({kv_heads_, gqa_group, count, d + kNormColumns});
    const at::Tensor seen = sums.select(3, d + 1);  // [Hkv, g, C] sum_j p_ij^2
    // sum_j p_ij^2 |u_j - w_i|^2, without a tensor of distances.
    const at::Tensor moved =
        (w.square().sum(-1) * seen - 2.0 * (w * sums.narrow(3, 0, d)).sum(-1) + sums.select(3, d)).clamp_min_(0.0);
    add_key_weights(input, rows, at, moved);
    add_value_weights(input, at, seen);
  }
}

void FarPairAccumulator::add_sequence_on_device(const AttentionInput& input, const at::Tensor& output,
                                                const Unrotation::Rows& rows, const Values& values, std::int64_t offset,
                                                std::int64_t length) {
  const std::int64_t d = head_dim_;
  const at::Tensor center = values.center.view({query_heads_, d});
  const SplitValues split = split_values(values.u.view({query_heads_, length, d}), center);
  const at::Tensor q = input.q.narrow(0, offset, length), k = input.k.narrow(0, offset, length);
  for (std::int64_t first = pairs_.sink + pairs_.recent; first < length; first += kDeviceLaunch) {
    const Queries at{offset, first, std::min(kDeviceLaunch, length - first)};
    const at::Tensor w = targets(output, at).view({query_heads_, at.count, d});
    add_queries_on_device(input, rows, at, device_far_pairs(input, q, k, split, w, center, first, pairs_));
  }
}

// The sums of one launch: kDeviceQueries queries after another, except that one launch computes the key weights of all.
void FarPairAccumulator::add_queries_on_device(const AttentionInput& input, const Unrotation::Rows& rows,
                                               const Queries& at, const FarSums& sums) {
  const std::int64_t gqa_group = query_heads_ / kv_heads_, d = head_dim_;
  std::vector<Queries> parts;
  std::vector<at::Tensor> weighted;  // one per part
  for (std::int64_t done = 0; done < at.count; done += kDeviceQueries) {
    const Queries part{at.offset, at.first + done, std::min(kDeviceQueries, at.count - done)};
    const std::int64_t row = part.offset + part.first;
    const at::Tensor both =
        device_far_rows(input.q.narrow(0, row, part.count), kv_heads_, sums.moved.narrow(1, done, part.count),
                        {rows.cos.narrow(0, row, part.count), rows.sin.narrow(0, row, part.count)});
    if (both.defined()) weighted.push_back(both.view({2 * kv_heads_, gqa_group * part.count, d}));
    parts.push_back(part);
  }
  const at::Tensor products = weighted.empty() ? at::Tensor() : device_long_grams(weighted);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto of_part = [&](const at::Tensor& sum) {
      return sum.narrow(1, parts[i].first - at.first, parts[i].count).view({kv_heads_, gqa_group, parts[i].count});
    };
    if (products.defined()) {
      const auto run = static_cast<std::int64_t>(i);
      q_grams_.add_(products[run].view({2, kv_heads_, d, d}), input.scale * input.scale);
    } else {
      add_key_weights(input, rows, parts[i], of_part(sums.moved));
    }
    add_value_weights(input, parts[i], of_part(sums.seen));
  }
}

// Outputs in the coordinates of the values and their center, [Hkv, g, C, d]; values are compared with them.
at::Tensor FarPairAccumulator::targets(const at::Tensor& output, const Queries& at) const {
  const std::int64_t gqa_group = query_heads_ / kv_heads_, d = head_dim_;
  const at::Tensor some = at.of(output), by_head = device_head_rows(some);
  if (by_head.defined()) return at::bmm(by_head, factor_).view({kv_heads_, gqa_group, at.count, d});
  const at::Tensor o = by_group(some, kv_heads_);
  return at::matmul(o.view({kv_heads_, gqa_group, at.count, d}), factor_.view({kv_heads_, gqa_group, d, d}));
}

void FarPairAccumulator::add_key_weights(const AttentionInput& input, const Unrotation::Rows& rows, const Queries& at,
                                         const at::Tensor& moved) {
  const std::int64_t gqa_group = query_heads_ / kv_heads_, d = head_dim_;
  const double weight = input.scale * input.scale * at.weight;
  const at::Tensor q = by_group(at.of(input.q), kv_heads_);  // [Hkv, g C, d]
  const at::Tensor weighted = q * moved.reshape({kv_heads_, gqa_group * at.count, 1}).sqrt();
  q_gram_.add_(at::bmm(weighted.transpose(1, 2), weighted).to(at::kDouble), weight);
  const at::Tensor before =
      undo_rope(weighted.view({kv_heads_, gqa_group, at.count, d}), at.of(rows.cos), at.of(rows.sin))
          .view({kv_heads_, gqa_group * at.count, d});
  pre_q_gram_.add_(at::bmm(before.transpose(1, 2), before).to(at::kDouble), weight);
}

void FarPairAccumulator::add_value_weights(const AttentionInput& input, const Queries& at, const at::Tensor& seen) {
  const std::int64_t gqa_group = query_heads_ / kv_heads_, d = head_dim_;
  const at::Tensor by_head = seen.sum(-1, false, at::kDouble);  // [Hkv, g]
  v_weight_.add_((head_gram_.view({kv_heads_, gqa_group, d, d}) * by_head.unsqueeze(-1).unsqueeze(-1)).sum(1),
                 at.weight);
  const auto meant = static_cast<std::int64_t>(std::lround(at.weight * static_cast<double>(at.count)));
  for (std::int64_t query = at.first; query < at.first + meant; ++query) {
    // Keys [max(sink, first visible key), query - recent].
    const std::int64_t from = std::max(pairs_.sink, input.first_key(query));
    const std::int64_t pairs = std::max<std::int64_t>(query - pairs_.recent - from + 1, 0);
    pair_count_ += static_cast<double>(pairs);
    queries_ += pairs > 0 ? 1.0 : 0.0;
  }
}

at::Tensor FarPairAccumulator::weights_of(at::Tensor logits, const AttentionInput& input, const Queries& at,
                                          std::int64_t begin) {
  const std::int64_t columns = logits.size(3), own_keys = at.reach() - at.first;
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  if (input.soft_cap > 0.0) logits.div_(input.soft_cap).tanh_().mul_(input.soft_cap);
  // Only the block's own keys come after some of its queries.
  const Places own = places(at.first, at.count, at.step, at.first, own_keys, logits.device());
  logits.narrow(3, at.first - begin, own_keys).masked_fill_(own.key.gt(own.query), kHidden);
  if (!input.sees_all()) {
    const Places all = places(at.first, at.count, at.step, begin, columns, logits.device());
    logits.masked_fill_(out_of_sight(all, input), kHidden);
  }
  if (!input.sinks.defined()) return at::softmax(logits, -1);
  const at::Tensor sinks =
      input.sinks.to(at::kFloat).view({logits.size(0), logits.size(1), 1, 1}).expand({-1, -1, at.count, 1});
  return at::softmax(at::cat({logits, sinks}, -1), -1).narrow(-1, 0, columns).contiguous();
}

// In place, on the keys [sink, end of the block - recent), which hold the block's pairs outside the windows: p_ij^2 for
// such a pair, 0 for any other.
void FarPairAccumulator::square_far_pairs(const at::Tensor& p, const Queries& at, std::int64_t begin) const {
  const std::int64_t end = begin + p.size(3) - pairs_.recent, from = std::max(pairs_.sink, begin);
  p.narrow(3, from - begin, end - from).square_();
  // Keys before `sure` are outside the windows of all queries of the block.
  const std::int64_t sure = std::max(at.first - pairs_.recent + 1, from);
  const Places late = places(at.first, at.count, at.step, sure, end - sure, p.device());
  p.narrow(3, sure - begin, end - sure).masked_fill_(late.key.gt(late.query - pairs_.recent), 0.0);
}

void FarPairAccumulator::finish(LayerMoments& out) const {
  if (!pairs_.enabled) return;
  const at::Tensor grams = exactly_symmetric(q_grams_);
  out.far_q_gram = grams[0], out.far_pre_q_gram = grams[1];
  out.far_v_weight = exactly_symmetric(v_weight_);
  out.far_count = at::tensor({queries_, pair_count_}, at::kDouble);
}

}  // namespace oscar
