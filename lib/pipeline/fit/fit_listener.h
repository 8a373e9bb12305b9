// What a run of oscar-fit finds. The pipeline tells it here, and the command prints it (apps/output/fit_output.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "collect/collect.h"
#include "collect/collect_estimate.h"
#include "fit/fit_result.h"
#include "pipeline/fit/fit_curves.h"
#include "pipeline/fit/fit_measure.h"
#include "pipeline/fit/fit_request.h"
#include "pipeline/fit/held_out.h"

namespace oscar {

// --dry-run on statistics.
struct FitPlan {
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0, tokens = 0, rows = 0;
  std::uint64_t peak_memory_bytes = 0, output_bytes = 0;
  std::optional<CurvePlan> curves;
};
FitPlan plan_fit(const Statistics& statistics, const FitOptions& options);

// --dry-run with a model.
struct ModelPlan {
  const TokenPlan& tokens;
  const CollectOptions& options;
  const CollectEstimate& estimate;
  std::optional<std::string> own_text;  // the plan of self-generated text
  std::optional<CurvePlan> curves;
  std::optional<HeldOutShape> held_out;
  std::int64_t held_out_tokens = 0;
};

// A saved bundle. Null: nothing was measured, or no target was given.
struct SavedFit {
  const Bundle& bundle;
  const FitResult& result;
  const HeldOutText* text = nullptr;
  const Measured* measured = nullptr;
  const TargetChoice* target = nullptr;
};

// One budget of --pareto.
struct ParetoRow {
  double budget = 0.0, bits = 0.0, key_bits = 0.0, value_bits = 0.0, error = 0.0;
  std::optional<KlMetrics> kl{};  // measured on held-out text
  std::string directory;
};
ParetoRow pareto_row(double budget, const Bundle& bundle, const FitResult& result, const std::string& directory);

class FitListener {
 public:
  virtual ~FitListener() = default;
  virtual void planned(const FitPlan& plan) = 0;
  virtual void planned(const ModelPlan& plan) = 0;
  virtual void collected(const TokenPlan& plan, const CollectOptions& options, const CollectReport& report) = 0;
  virtual void saved(const SavedFit& fit) = 0;
  virtual void saved(const std::vector<ParetoRow>& rows) = 0;  // with --dry-run only fitted
};

// oscar-fit: collect, measure widths, fit, save.
// Runs the request, or under --dry-run plans it.
void run_fit(const FitRequest& request, FitListener& listener);

}  // namespace oscar
