// Quality gates: limits that the method under judgement (the bundle's) must keep. A failed gate is exit code 1.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace oscar {

struct GateLimits {
  std::optional<double> max_kl;           // mean KL to BF16, nats
  std::optional<double> max_ppl_ratio;    // PPL / PPL of BF16
  std::optional<double> min_top1;         // fraction of tokens with BF16's most probable token, 0..1
  std::optional<double> min_niah;         // needle score, 0..1, at the worst length
  std::optional<double> max_kl_increase;  // of mean KL over that of the earlier report; see baseline_report.h
  bool any() const { return max_kl || max_ppl_ratio || min_top1 || min_niah; }
};

// UsageError for a limit outside its range, or on a metric that this run does not compute.
void check_gate_limits(const GateLimits& limits, bool has_judged_method, const std::vector<std::string>& tasks);

// All gates on one row of the report. A value that was not measured, and one that is not a number, fails.
std::vector<GateResult> evaluate_gates(const GateLimits& limits, const MethodReport& method);

// Fills passes_gates of every quantised row, and report.gates from the judged ones; report.pass from gates and checks.
void apply_gates(const GateLimits& limits, VerifyReport& report);

}  // namespace oscar
