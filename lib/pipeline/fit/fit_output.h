// Output of oscar-fit on stdout: the plan, the before/after table, or the same as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "fit/fit_options.h"
#include "fit/fit_result.h"
#include "pipeline/fit/fit_curves.h"
#include "report/metrics.h"

namespace oscar {

struct FitPlan {
  std::int64_t layers = 0, kv_heads = 0, head_dim = 0, tokens = 0, rows = 0;
  std::uint64_t peak_memory_bytes = 0, output_bytes = 0;
  double seconds = 0.0;  // measured on one head and scaled
  std::optional<CurvePlan> curves;
};

FitPlan plan_fit(const Statistics& statistics, const FitOptions& options);
Json curve_plan_json(const CurvePlan& plan);
std::string curve_plan_text(const CurvePlan& plan);  // one line
void print_fit_plan(const FitPlan& plan, const std::string& output, bool json);
// What a run says beside the fit.
struct Ending {
  std::string text;  // its last lines: what was measured
  Json measured;     // the same (fit_measure.h), or null
  Json target{};     // what chose the budget (fit_target.h), or null
};
// statistics: the file used for the fit.
void print_fit_result(const Bundle& bundle, const FitResult& result, const std::string& output,
                      const std::string& statistics, bool json, const Ending& ending);

// One budget of --pareto.
struct ParetoRow {
  double budget = 0.0, bits = 0.0, key_bits = 0.0, value_bits = 0.0, error = 0.0;
  std::optional<KlMetrics> kl{};  // measured on held-out text
  std::string directory;
};

ParetoRow pareto_row(double budget, const Bundle& bundle, const FitResult& result, const std::string& directory);
void print_pareto(const std::vector<ParetoRow>& rows, bool dry_run, bool json);

}  // namespace oscar
