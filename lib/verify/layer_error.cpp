#include "verify/layer_error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/prefill_core.h"

namespace oscar {
namespace {

// Number of sampled queries: as many as fit in kElements logits, within these bounds. A query of a long sequence has as
// many keys as several of a short one.
constexpr std::int64_t kLeastQueries = 16, kMostQueries = 64;
// Elements per tensor of logits and outputs, because about a dozen are in memory at once. Long sequences are processed
// in parts.
constexpr std::int64_t kElements = std::int64_t{1} << 24;

// [Q, Hq, d] x [Hkv, K, d] -> [Hkv, g, Q, K]
at::Tensor head_logits(const at::Tensor& q, const at::Tensor& k) {
  const std::int64_t queries = q.size(0), kv_heads = k.size(0), gqa_group = q.size(1) / kv_heads, d = q.size(2);
  const at::Tensor by_head =
      q.view({queries, kv_heads, gqa_group, d}).permute({1, 2, 0, 3}).reshape({kv_heads, gqa_group * queries, d});
  return at::bmm(by_head, k.transpose(1, 2)).view({kv_heads, gqa_group, queries, k.size(1)});
}

// x minus each row's mean over its visible columns, zero elsewhere. visible: [Q, K] of 0 and 1.
at::Tensor centered(const at::Tensor& x, const at::Tensor& visible) {
  const at::Tensor mean = (x * visible).sum(-1, true) / visible.sum(-1, true).clamp_min(1.0);
  return (x - mean) * visible;
}

// [Hkv, ...] -> sums per head, in FP64.
std::vector<double> head_sums(const at::Tensor& x) {
  const at::Tensor s = x.reshape({x.size(0), -1}).sum(1, false, at::kDouble).to(at::kCPU).contiguous();
  return {s.const_data_ptr<double>(), s.const_data_ptr<double>() + s.numel()};
}

double relative(double error, double energy) { return energy > 0 ? std::sqrt(error / energy) : 0.0; }

}  // namespace

// 1 if the sampled query sees the column, and for `coded` reads it quantized: [Q, T] each.
struct LayerErrors::Visible {
  at::Tensor any, coded, sink, recent;
};

LayerErrors::Visible LayerErrors::visible_columns(const std::vector<std::int64_t>& positions,
                                                  const AttentionInput& input, const CacheWindows& coded,
                                                  const CacheWindows& tiers) {
  const auto mask = [&](const auto& range) {  // of a position: the part of {begin, end} that it sees
    ColumnRanges ranges;
    for (const std::int64_t p : positions) {
      const auto [begin, end] = range(p);
      ranges.begin.push_back(std::max(begin, input.first_key(p))), ranges.end.push_back(std::min(end, p + 1));
    }
    return columns_within(ranges, 0, input.k.size(0), input.q.device());
  };
  using Range = std::pair<std::int64_t, std::int64_t>;
  return {mask([](std::int64_t p) {
            return Range{0, p + 1};
          }),
          mask([&](std::int64_t p) {
            return Range{coded.sink, coded.quantized_end(p + 1)};
          }),
          mask([&](std::int64_t) {
            return Range{0, tiers.sink};
          }),
          mask([&](std::int64_t p) {
            return Range{std::max<std::int64_t>(tiers.sink, p + 1 - tiers.recent), p + 1};
          })};
}

namespace {

// Log weights over the columns [Hkv, g, Q, T]; -inf at hidden columns. Sink logits of the model get their share.
at::Tensor log_weights(at::Tensor logits, const AttentionInput& input, const at::Tensor& seen) {
  const std::int64_t kv_heads = logits.size(0), gqa_group = logits.size(1), columns = logits.size(3);
  logits = logits * input.scale;
  if (input.soft_cap > 0.0) logits = (logits / input.soft_cap).tanh() * input.soft_cap;
  logits = logits.masked_fill(seen.lt(0.5f), -std::numeric_limits<float>::infinity());
  if (!input.sinks.defined()) return at::log_softmax(logits, -1, at::kDouble);
  const at::Tensor sinks = input.sinks.to(logits.device(), at::kFloat).view({kv_heads, gqa_group, 1, 1});
  return at::log_softmax(at::cat({logits, sinks.expand({kv_heads, gqa_group, logits.size(2), 1})}, -1), -1, at::kDouble)
      .narrow(-1, 0, columns);
}

}  // namespace

void HeadErrorSums::add(const HeadErrorSums& other) {
  logit_error += other.logit_error, logit_energy += other.logit_energy;
  logit_cross += other.logit_cross, stored_energy += other.stored_energy;
  output_error += other.output_error, output_energy += other.output_energy;
  divergence += other.divergence, sink_mass += other.sink_mass, recent_mass += other.recent_mass;
  queries += other.queries;
}

HeadError HeadErrorSums::result(std::int64_t head) const {
  HeadError e{.head = head, .k_logit = relative(logit_error, logit_energy)};
  const double product = logit_energy * stored_energy;
  e.k_logit_correlation = product > 0 ? std::clamp(logit_cross / std::sqrt(product), -1.0, 1.0) : 1.0;
  e.attention_kl = queries > 0 ? std::max(divergence / queries, 0.0) : 0.0;
  e.attention_output = relative(output_error, output_energy);
  e.sink_mass_lost = queries > 0 ? sink_mass / queries : 0.0;
  e.recent_mass_lost = queries > 0 ? recent_mass / queries : 0.0;
  return e;
}

HeadErrorSums LayerErrorSums::total() const {
  HeadErrorSums sum;
  for (const HeadErrorSums& h : heads) sum.add(h);
  return sum;
}

LayerError LayerErrorSums::result(std::int64_t layer) const {
  LayerError e{
      .layer = layer, .mean = total().result(-1), .projected_output = relative(projected_error, projected_energy)};
  for (std::size_t h = 0; h < heads.size(); ++h) e.heads.push_back(heads[h].result(static_cast<std::int64_t>(h)));
  return e;
}

// Sampled queries of one layer and their baseline results.
struct LayerErrors::Queries {
  CacheWindows windows;
  Visible seen;
  at::Tensor q;                     // [Q, Hq, d] FP32
  at::Tensor logits;                // [Hkv, g, Q, T] FP32
  at::Tensor visible;               // [Q, T] quantized columns of queries with at least two of them
  at::Tensor centered_logits;       // as logits, over the visible columns, FP64
  at::Tensor log_weights, weights;  // as logits, FP64
  std::vector<double> energy;       // [Hkv] energy of the centered logits

  Queries(const AttentionInput& input, const at::Tensor& k, const std::vector<std::int64_t>& positions,
          const CacheWindows& coded, const CacheWindows& tiers)
      : windows(coded), seen(visible_columns(positions, input, coded, tiers)) {
    const at::Tensor index = at::tensor(positions, at::kLong).to(input.q.device());
    q = with_rope(input.q, input.q_rope).index_select(0, index).to(at::kFloat).contiguous();
    logits = head_logits(q, k);
    visible = seen.coded * seen.coded.sum(-1).gt(1.5).to(at::kFloat).unsqueeze(-1);
    centered_logits = centered(logits, visible).to(at::kDouble);
    log_weights = oscar::log_weights(logits, input, seen.any);
    weights = log_weights.exp();
    energy = head_sums(centered_logits.square());
  }
};

LayerErrors::LayerErrors(const AttentionInput& input, const CacheWindows& tiers) : input_(input), tiers_(tiers) {}
LayerErrors::~LayerErrors() = default;

// rows: the keys as read from the cache.
void LayerErrors::add_queries(const Queries& exact, const CachedRows& rows, LayerErrorSums& sums) const {
  const std::int64_t kv_heads = input_.k.size(1);
  const Visible& seen = exact.seen;
  const at::Tensor coded = head_logits(exact.q, rows.coded);
  const at::Tensor stored = at::where(seen.coded.gt(0.5f), coded, head_logits(exact.q, rows.plain));
  const at::Tensor s = centered(coded, exact.visible), difference = centered(coded - exact.logits, exact.visible);
  const at::Tensor log_q = log_weights(stored, input_, seen.any);
  const at::Tensor &p = exact.weights, lost = p - log_q.exp();
  const at::Tensor kl = (p * (exact.log_weights - log_q)).masked_fill(seen.any.lt(0.5f), 0.0);

  const std::vector<double> error = head_sums(difference.to(at::kDouble).square());
  const std::vector<double> cross = head_sums(exact.centered_logits * s);
  const std::vector<double> stored_energy = head_sums(s.to(at::kDouble).square());
  const std::vector<double> divergence = head_sums(kl);
  const std::vector<double> sink = head_sums(lost * seen.sink), recent = head_sums(lost * seen.recent);
  const double count = static_cast<double>(exact.q.size(0)) * static_cast<double>(exact.q.size(1) / kv_heads);
  for (std::size_t h = 0; h < static_cast<std::size_t>(kv_heads); ++h) {
    HeadErrorSums& sum = sums.heads[h];
    sum.logit_error += error[h], sum.logit_energy += exact.energy[h];
    sum.logit_cross += cross[h], sum.stored_energy += stored_energy[h];
    sum.divergence += divergence[h], sum.sink_mass += sink[h], sum.recent_mass += recent[h];
    sum.queries += count;
  }
}

void LayerErrors::add_weights(const KvMethod& method, LayerErrorSums& sums) {
  const std::int64_t tokens = input_.k.size(0), kv_heads = input_.k.size(1);
  if (!method.quantized_at(input_.layer)) return;
  const CacheWindows& windows = method.windows_of(Side::kKey);
  // Queries with at least two keys in the quantized range: with one key, nothing remains after removing the mean.
  std::vector<std::int64_t> positions;
  const std::int64_t first = windows.sink + windows.recent + 1;
  const std::int64_t step = std::max<std::int64_t>(1, kElements / (input_.q.size(1) * tokens));
  const std::int64_t sampled = std::clamp(step, kLeastQueries, kMostQueries);
  const std::int64_t stride = std::max<std::int64_t>(1, (tokens - first) / sampled);
  for (std::int64_t p = tokens - 1; p >= first && std::ssize(positions) < sampled; p -= stride) {
    if (windows.quantized_end(p + 1) >= windows.sink + 2) positions.push_back(p);
  }
  if (positions.empty()) return;
  if (std::ssize(sums.heads) < kv_heads) sums.heads.resize(static_cast<std::size_t>(kv_heads));
  if (!keys_.defined()) keys_ = with_rope(input_.k, input_.k_rope).to(at::kFloat).transpose(0, 1).contiguous();
  CachedRows rows = decoded_model_rows(method, input_.layer, Side::kKey, input_.k);
  add_rope(rows, input_.k_rope);
  if (std::ssize(positions) <= step) {
    const auto known = std::find_if(queries_.begin(), queries_.end(),
                                    [&](const auto& queries) { return queries->windows == windows; });
    if (known != queries_.end()) return add_queries(**known, rows, sums);
    queries_.push_back(std::make_unique<Queries>(input_, keys_, positions, windows, tiers_));
    return add_queries(*queries_.back(), rows, sums);
  }
  for (std::int64_t at = 0; at < std::ssize(positions); at += step) {
    const auto begin = positions.begin() + at, end = begin + std::min(step, std::ssize(positions) - at);
    add_queries(Queries(input_, keys_, {begin, end}, windows, tiers_), rows, sums);
  }
}

namespace {

std::vector<double> energy_by_head(const at::Tensor& x, std::int64_t kv_heads) {
  return head_sums(x.square().sum(0).view({kv_heads, -1}));
}

// Squared norm after W_O; projection: [Hq d, hidden] FP32.
double projected_energy(const at::Tensor& x, const at::Tensor& projection) {
  return at::mm(x.to(at::kFloat).reshape({x.size(0), -1}), projection).to(at::kDouble).square().sum().item<double>();
}

}  // namespace

OutputErrors::OutputErrors(const at::Tensor& exact, std::int64_t first, std::int64_t kv_heads,
                           const at::Tensor& projection)
    : exact_(exact), first_(first), kv_heads_(kv_heads) {
  if (projection.defined()) projection_ = projection.to(exact.device(), at::kFloat).t();
}

void OutputErrors::add(const at::Tensor& method, LayerErrorSums& sums) {
  if (exact_.size(0) <= first_) return;
  if (std::ssize(sums.heads) < kv_heads_) sums.heads.resize(static_cast<std::size_t>(kv_heads_));
  const std::int64_t step = std::max<std::int64_t>(1, kElements / exact_[0].numel());
  std::size_t part = 0;
  for (std::int64_t at = first_; at < exact_.size(0); at += step, ++part) {
    const std::int64_t rows = std::min(step, exact_.size(0) - at);
    const at::Tensor o = exact_.narrow(0, at, rows).to(at::kDouble),
                     difference = method.narrow(0, at, rows).to(at::kDouble) - o;
    if (part == energies_.size()) {
      energies_.push_back(
          {energy_by_head(o, kv_heads_), projection_.defined() ? projected_energy(o, projection_) : 0.0});
    }
    const std::vector<double> error = energy_by_head(difference, kv_heads_);
    for (std::size_t h = 0; h < error.size(); ++h) {
      sums.heads[h].output_error += error[h], sums.heads[h].output_energy += energies_[part].by_head[h];
    }
    if (!projection_.defined()) continue;
    sums.projected_error += projected_energy(difference, projection_);
    sums.projected_energy += energies_[part].projected;
  }
}

}  // namespace oscar
