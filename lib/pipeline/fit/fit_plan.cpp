#include "bundle/model_card.h"
#include "fit/fit.h"
#include "pipeline/fit/fit_listener.h"
#include "registry/registry.h"

namespace oscar {

FitPlan plan_fit(const Statistics& s, const FitOptions& options) {
  FitPlan plan{static_cast<std::int64_t>(s.layers.size()), s.kv_heads, s.head_dim, s.tokens};
  const auto d = static_cast<std::uint64_t>(s.head_dim), heads = static_cast<std::uint64_t>(s.kv_heads);
  const auto layers = static_cast<std::uint64_t>(plan.layers);
  plan.rows = s.layers[0].rows_k.defined() ? s.layers[0].rows_k.size(0) : 0;
  const std::uint64_t stored =
      options.scope == Scope::kHead && !fitted_method(options.method).data_free() ? heads : std::uint64_t{1};
  plan.output_bytes = 2 * layers * stored * d * (d + 1) * sizeof(float);
  // Memory: the statistics, targets and eigenvectors (FP64) of both sides, and a second copy of the rows.
  const std::uint64_t grams = layers * heads * d * d * sizeof(double);
  const std::uint64_t rows = layers * static_cast<std::uint64_t>(plan.rows) *
                             (static_cast<std::uint64_t>(s.query_heads) + 2 * heads) * d * sizeof(float);
  plan.peak_memory_bytes = 6 * grams + 6 * grams + 2 * rows + plan.output_bytes;
  return plan;
}

ParetoRow pareto_row(double budget, const Bundle& bundle, const FitResult& result, const std::string& directory) {
  ParetoRow row{.budget = budget, .bits = bundle_bits_per_element(bundle), .directory = directory};
  const double weight = 1.0 / static_cast<double>(result.layers.size());
  for (const LayerFit& layer : result.layers) {
    row.key_bits += weight * layer.transform.key.code(layer.transform.head_dim, 0).bits_per_element();
    row.value_bits += weight * layer.transform.value.code(layer.transform.head_dim, 0).bits_per_element();
    row.error += layer.key_spectrum.error + layer.value_spectrum.error;
  }
  return row;
}

}  // namespace oscar
