#include "statistics/statistics_weight.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "statistics/layer_fields.h"

namespace oscar {
namespace {

constexpr double kPriorities = 18446744073709551616.0;  // 2^64

// A priority is uniform in [0, 1) in units of 2^64, and a sample keeps the smallest. Then -log(1 - u) is exponential,
// and a token of weight w arrives at rate w. So u' = 1 - (1 - u)^(1/w), which keeps the order within a part (weighted
// reservoir, Efraimidis and Spirakis 2006).
std::uint64_t weighted_priority(std::uint64_t priority, double weight) {
  const double u = -std::expm1(std::log1p(-static_cast<double>(priority) / kPriorities) / weight);
  const double scaled = std::floor(u * kPriorities);
  return scaled >= kPriorities ? ~std::uint64_t{0} : static_cast<std::uint64_t>(scaled);
}

void weigh_rows(LayerMoments& layer, double weight, std::int64_t tokens) {
  if (!layer.rows_q.defined()) return;
  const auto rows = std::min(tokens, static_cast<std::int64_t>(layer.row_priority.size()));
  layer.row_priority.resize(static_cast<std::size_t>(rows));
  if (!layer.row_position.empty()) layer.row_position.resize(static_cast<std::size_t>(rows));
  for (std::uint64_t& priority : layer.row_priority) priority = weighted_priority(priority, weight);
  for (const RowField& field : kRowFields) {
    at::Tensor& t = layer.*field.tensor;
    t = t.narrow(0, 0, rows).contiguous();
  }
}

void weigh(at::Tensor& sum, double factor) {
  if (sum.defined()) sum = sum * factor;
}

// In floating point the factor is not the exact quotient of two token counts, so the counts are set.
void weigh_energy(at::Tensor& energy, double factor, std::int64_t tokens) {
  if (!energy.defined()) return;
  energy = energy * factor;
  energy[1] = static_cast<double>(tokens);
}

// [2, 2]: sums over all tokens, whose count is set as above, and over the tokens after the windows.
void weigh_residual(at::Tensor& energy, double factor, std::int64_t tokens) {
  if (!energy.defined()) return;
  energy = energy * factor;
  energy[0][1] = static_cast<double>(tokens);
}

void record_weight(Json& metadata, double weight) {
  if (!metadata.is_object() || !metadata.contains("parts") || !metadata["parts"].is_array()) return;
  for (Json& run : metadata["parts"]) {
    if (!run.is_object()) continue;
    const bool weighed = run.contains("weight") && run["weight"].is_number();
    run["weight"] = weight * (weighed ? run["weight"].get<double>() : 1.0);
  }
}

}  // namespace

Statistics weighted_statistics(const Statistics& s, double weight) {
  if (!(weight > 0.0) || weight > 1.0) throw UsageError("the weight of statistics is above 0 and at most 1");
  Statistics out = s;
  if (weight == 1.0) return out;
  out.tokens = std::max<std::int64_t>(1, std::llround(weight * static_cast<double>(s.tokens)));
  const double factor = static_cast<double>(out.tokens) / static_cast<double>(s.tokens);
  weigh_energy(out.embedding_energy, factor, out.tokens);
  for (LayerMoments& layer : out.layers) {
    for (const MomentField& field : kMomentFields) {
      if (field.tensor != &LayerMoments::wo_gram) weigh(layer.*field.tensor, factor);  // not a sum
    }
    for (const MetricField& field : kFarPairFields) weigh(layer.*field.tensor, factor);
    weigh_residual(layer.attention_residual, factor, out.tokens);
    weigh_residual(layer.attention_gain, factor, out.tokens);
    weigh_energy(layer.residual_energy, factor, out.tokens);
    weigh_rows(layer, factor, out.tokens);
  }
  record_weight(out.metadata, weight);
  return out;
}

std::vector<Statistics> decayed_statistics(std::vector<Statistics> parts, double decay) {
  double weight = 1.0;
  for (std::size_t p = parts.size(); p-- > 0; weight *= decay) parts[p] = weighted_statistics(parts[p], weight);
  return parts;
}

}  // namespace oscar
