// Quality gates: limits that the method under judgment (the bundle's) must keep. A failed gate is exit code 1.
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

// The mean KL that a bundle may have where no gate is named: docs/quality.md says what it is worth.
inline constexpr double kDefaultMaxKl = 0.05;
// The bootstrap of fewer sequences says too little to let a bundle pass.
inline constexpr std::int64_t kLeastSequences = 4;

// All gates on one row of the report. KL, perplexity and top token pass where the far end of their confidence interval
// keeps the limit, of at least kLeastSequences sequences; the needle score is compared as it is. A value that was not
// measured, and one that is not a number, fails.
std::vector<GateResult> evaluate_gates(const GateLimits& limits, const MethodReport& method, std::int64_t sequences);

// Fills passes_gates of the judged rows, report.gates, and report.pass from gates and checks. A gate that was asked for
// fails where it cannot tell; the default one (report.default_gate) is left out then, and report.undecided says why.
void apply_gates(const GateLimits& limits, VerifyReport& report);

}  // namespace oscar
