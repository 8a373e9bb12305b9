#include "verify/layer_error.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/basis.h"
#include "attention/column_range.h"
#include "attention/logit_noise.h"
#include "attention/reconstruction.h"

namespace oscar {
namespace {

constexpr std::int64_t kSampledQueries = 64;
// Logits of sampled queries, and outputs, of which a dozen tensors are held at once: long sequences go in parts.
constexpr std::int64_t kElements = std::int64_t{1} << 24;

// [Q, Hq, d] x [Hkv, K, d] -> [Hkv, g, Q, K]
at::Tensor head_logits(const at::Tensor& q, const at::Tensor& k) {
  const std::int64_t queries = q.size(0), kv_heads = k.size(0), gqa_group = q.size(1) / kv_heads, d = q.size(2);
  const at::Tensor by_head = q.view({queries, kv_heads, gqa_group, d}).permute({1, 2, 0, 3});
  return at::matmul(by_head, k.transpose(1, 2).unsqueeze(1));
}

// x less each row's mean over its visible columns, zero elsewhere. visible: [Q, K] of 0 and 1.
at::Tensor centred(const at::Tensor& x, const at::Tensor& visible) {
  const at::Tensor mean = (x * visible).sum(-1, true) / visible.sum(-1, true).clamp_min(1.0);
  return (x - mean) * visible;
}

// [Hkv, ...] -> sums over everything but the head, in FP64.
std::vector<double> head_sums(const at::Tensor& x) {
  const at::Tensor s = x.reshape({x.size(0), -1}).sum(1, false, at::kDouble).to(at::kCPU).contiguous();
  return {s.const_data_ptr<double>(), s.const_data_ptr<double>() + s.numel()};
}

double relative(double error, double energy) { return energy > 0 ? std::sqrt(error / energy) : 0.0; }

// 1 where the sampled query sees the column and, for codes, reads it coded: [Q, T] each.
struct Visible {
  at::Tensor any, coded, sink, recent;
};

Visible visible_columns(const std::vector<std::int64_t>& positions, const AttentionInput& input,
                        const CacheWindows& coded, const CacheWindows& tiers) {
  const auto mask = [&](const auto& range) {  // of a position: {begin, end}, of which it sees some
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
            return Range{coded.sink, coded.quantised_end(p + 1)};
          }),
          mask([&](std::int64_t) {
            return Range{0, tiers.sink};
          }),
          mask([&](std::int64_t p) {
            return Range{std::max<std::int64_t>(tiers.sink, p + 1 - tiers.recent), p + 1};
          })};
}

// Log weights over the columns [Hkv, g, Q, T]; -inf at hidden ones. Sink logits of the model take their share.
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
  HeadError e;
  e.head = head;
  e.k_logit = relative(logit_error, logit_energy);
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
  LayerError e;
  e.layer = layer;
  e.mean = total().result(-1);
  e.projected_output = relative(projected_error, projected_energy);
  for (std::size_t h = 0; h < heads.size(); ++h) e.heads.push_back(heads[h].result(static_cast<std::int64_t>(h)));
  return e;
}

namespace {

// The sampled queries at these positions. rows: the keys as they are read.
void add_query_errors(const AttentionInput& input, const KvMethod& method, const CachedRows& rows,
                      const std::vector<std::int64_t>& positions, const CacheWindows& tiers, LayerErrorSums& sums) {
  const std::int64_t kv_heads = input.k.size(1);
  const CacheWindows& windows = method.windows_of(Side::kKey);
  const auto head_count = static_cast<std::size_t>(kv_heads);
  const at::Device device = input.q.device();
  const Visible seen = visible_columns(positions, input, windows, tiers);
  const at::Tensor index = at::tensor(positions, at::kLong).to(device);
  const at::Tensor q = input.q.index_select(0, index).to(at::kFloat).contiguous();
  const at::Tensor k = input.k.to(at::kFloat).transpose(0, 1).contiguous();
  const at::Tensor exact = head_logits(q, k), coded = head_logits(q, rows.coded);
  at::Tensor read = coded;  // what the softmax takes of them
  if (rows.noise.defined()) {
    const at::Tensor cached = rotate_queries(q, method.transform(input.layer, Side::kKey), kv_heads);
    const std::int64_t runs = rows.noise.size(2);
    read = coded + head_logits(noise_queries(method, input.layer, cached, runs, input.scale), rows.noise);
  }
  const at::Tensor stored = at::where(seen.coded.gt(0.5f), read, head_logits(q, rows.plain));

  const at::Tensor some = seen.coded.sum(-1).gt(1.5).to(at::kFloat).unsqueeze(-1);  // [Q, 1]
  const at::Tensor visible = seen.coded * some;
  const at::Tensor e = centred(exact, visible), s = centred(coded, visible),
                   difference = centred(coded - exact, visible);
  const at::Tensor log_p = log_weights(exact, input, seen.any), log_q = log_weights(stored, input, seen.any);
  const at::Tensor p = log_p.exp(), lost = p - log_q.exp();
  const at::Tensor kl = (p * (log_p - log_q)).masked_fill(seen.any.lt(0.5f), 0.0);

  const std::vector<double> error = head_sums(difference.to(at::kDouble).square());
  const std::vector<double> energy = head_sums(e.to(at::kDouble).square());
  const std::vector<double> cross = head_sums(e.to(at::kDouble) * s);
  const std::vector<double> stored_energy = head_sums(s.to(at::kDouble).square());
  const std::vector<double> divergence = head_sums(kl);
  const std::vector<double> sink = head_sums(lost * seen.sink), recent = head_sums(lost * seen.recent);
  const double count = static_cast<double>(positions.size()) * static_cast<double>(q.size(1) / kv_heads);
  for (std::size_t h = 0; h < head_count; ++h) {
    HeadErrorSums& sum = sums.heads[h];
    sum.logit_error += error[h], sum.logit_energy += energy[h];
    sum.logit_cross += cross[h], sum.stored_energy += stored_energy[h];
    sum.divergence += divergence[h], sum.sink_mass += sink[h], sum.recent_mass += recent[h];
    sum.queries += count;
  }
}

}  // namespace

void add_weight_errors(const AttentionInput& input, const KvMethod& method, const CacheWindows& tiers,
                       LayerErrorSums& sums) {
  const std::int64_t tokens = input.k.size(0), kv_heads = input.k.size(1);
  if (!method.quantised_at(input.layer)) return;
  const CacheWindows& windows = method.windows_of(Side::kKey);
  // Queries whose coded range holds at least two keys: with one there is nothing left beside the mean.
  std::vector<std::int64_t> positions;
  const std::int64_t first = windows.sink + windows.recent + 1;
  const std::int64_t stride = std::max<std::int64_t>(1, (tokens - first) / kSampledQueries);
  for (std::int64_t p = tokens - 1; p >= first && std::ssize(positions) < kSampledQueries; p -= stride) {
    if (windows.quantised_end(p + 1) >= windows.sink + 2) positions.push_back(p);
  }
  if (positions.empty()) return;
  if (std::ssize(sums.heads) < kv_heads) sums.heads.resize(static_cast<std::size_t>(kv_heads));
  const CachedRows rows = decoded_model_rows(method, input.layer, Side::kKey, input.k);
  const std::int64_t step = std::max<std::int64_t>(1, kElements / (input.q.size(1) * tokens));
  for (std::int64_t at = 0; at < std::ssize(positions); at += step) {
    const auto begin = positions.begin() + at;
    add_query_errors(input, method, rows, {begin, begin + std::min(step, std::ssize(positions) - at)}, tiers, sums);
  }
}

namespace {

void add_output_rows(const at::Tensor& exact, const at::Tensor& method, std::int64_t kv_heads,
                     const at::Tensor& projection, LayerErrorSums& sums) {
  const std::int64_t count = exact.size(0);
  const at::Tensor o = exact.to(at::kDouble), difference = method.to(at::kDouble) - o;
  const auto by_head = [&](const at::Tensor& x) { return head_sums(x.square().sum(0).view({kv_heads, -1})); };
  const std::vector<double> error = by_head(difference), energy = by_head(o);
  for (std::size_t h = 0; h < static_cast<std::size_t>(kv_heads); ++h) {
    sums.heads[h].output_error += error[h], sums.heads[h].output_energy += energy[h];
  }
  if (!projection.defined()) return;
  const auto squares = [&](const at::Tensor& x) {
    return at::mm(x.to(at::kFloat).reshape({count, -1}), projection).to(at::kDouble).square().sum().item<double>();
  };
  sums.projected_error += squares(difference), sums.projected_energy += squares(o);
}

}  // namespace

void add_output_error(const at::Tensor& exact, const at::Tensor& method, std::int64_t first, std::int64_t kv_heads,
                      const at::Tensor& projection, LayerErrorSums& sums) {
  const std::int64_t count = exact.size(0) - first;
  if (count <= 0) return;
  if (std::ssize(sums.heads) < kv_heads) sums.heads.resize(static_cast<std::size_t>(kv_heads));
  const at::Tensor w = projection.defined() ? projection.to(exact.device(), at::kFloat).t() : projection;
  const std::int64_t step = std::max<std::int64_t>(1, kElements / exact[0].numel());
  for (std::int64_t at = first; at < exact.size(0); at += step) {
    const std::int64_t rows = std::min(step, exact.size(0) - at);
    add_output_rows(exact.narrow(0, at, rows), method.narrow(0, at, rows), kv_heads, w, sums);
  }
}

}  // namespace oscar
