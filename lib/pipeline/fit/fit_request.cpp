#include "pipeline/fit/fit_request.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "curves/measure_curves.h"
#include "fit/fit.h"
#include "registry/registry.h"

namespace oscar {
namespace {

// 2 bits per code and 32 bits per group: bits = 2 + 32 / group.
std::int64_t group_for_bits(double bits, std::int64_t head_dim) {
  std::string possible;
  for (std::int64_t group = head_dim; group >= 8; --group) {
    if (head_dim % group != 0) continue;
    const double b = 2.0 + 32.0 / static_cast<double>(group);
    if (std::abs(bits - b) < 1e-3) return group;
    possible += (possible.empty() ? "" : ", ") + bits_text(b);
  }
  throw UsageError("--bits " + bits_text(bits) + " is not possible with head size " + std::to_string(head_dim) +
                   " and this method; choose one of: " + possible);
}

void choose_bits(const FitRequest& r, std::int64_t head_dim, bool latent, FitOptions& options) {
  if (fitted_method(options.method).allocates_bits) {
    options.bits = budget_of(r, latent);
    require_budget(options.bits, static_cast<int>(head_dim));
  } else if (r.bits > 0.0) {
    options.quant_group = group_for_bits(r.bits, head_dim);
  }
  for (const double bits : r.pareto) require_budget(bits, static_cast<int>(head_dim));
}

}  // namespace

double budget_of(const FitRequest& r, bool latent) { return r.bits > 0.0 ? r.bits : usual_bits(latent); }

void check_bits(const FitRequest& r, const ModelConfig& model) {
  FitOptions options = r.fit;
  choose_bits(r, model.head_dim, model.is_latent(), options);
}

FitOptions fit_options_for(const FitRequest& r, const Statistics& statistics) {
  FitOptions options = r.fit;
  if (fitted_method(options.method).metric_aware()) {
    options.context = r.context >= 0 ? r.context : default_context(statistics);
  }
  choose_bits(r, statistics.head_dim, statistics.rope_dim > 0, options);
  return options;
}

std::vector<double> budgets_of(const FitRequest& r, double chosen) {
  std::vector<double> budgets = r.pareto;
  if (budgets.empty()) budgets.push_back(chosen);
  std::sort(budgets.begin(), budgets.end());
  return budgets;
}

std::size_t measured_budgets(const FitRequest& r) {
  return r.target.given() ? static_cast<std::size_t>(kTargetBudgets) : std::max<std::size_t>(1, r.pareto.size());
}

}  // namespace oscar
