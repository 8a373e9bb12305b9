// Quality gates: limits for the candidate (the bundle's method). A failed gate gives exit code 1.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/report.h"

namespace oscar {

struct GateLimits {
  std::optional<double> max_kl;           // mean KL to BF16, in nats
  std::optional<double> max_ppl_ratio;    // PPL / PPL of BF16
  std::optional<double> min_top1;         // share of tokens with the same most probable token as BF16, 0..1
  std::optional<double> min_niah;         // needle score, 0..1, at the worst length
  std::optional<double> max_kl_increase;  // increase of mean KL over the earlier report; see baseline_report.h
  std::optional<double> max_kl_p999;      // KL that one token in a thousand exceeds, in nats
  bool any() const { return max_kl || max_kl_p999 || max_ppl_ratio || min_top1 || min_niah; }
};

// UsageError for a limit outside its range, or for a metric that this run does not compute.
void check_gate_limits(const GateLimits& limits, bool has_evaluated_method, const std::vector<std::string>& tasks);

// The default limit on a bundle's mean KL, if no gate is named. docs/quality.md explains the value.
inline constexpr double kDefaultMaxKl = 0.05;
// With fewer sequences, the bootstrap is too uncertain to let a bundle pass.
inline constexpr std::int64_t kLeastSequences = 4;
// With fewer tokens, fewer than five are above the 99.9 % quantile, and a sample of them says little about it.
inline constexpr std::int64_t kLeastTailTokens = 5000;

// Evaluates one gate by an interval over sequences. It passes if the far end is within the limit, with at least
// kLeastSequences sequences. A value beyond its limit fails without a reason; another failure has one.
enum class GateSide { kUpper, kLower };
GateResult gate_by_interval(const MethodReport& method, const char* name, double limit, double value,
                            const std::optional<Interval>& interval, std::int64_t sequences, GateSide side);

// Evaluates all gates on one row of the report: KL, perplexity and top token by their intervals over sequences, of
// several texts on each; the needle score by the lower end of Wilson's interval over needles, at the worst length. A
// value that is missing or not a number fails.
std::vector<GateResult> evaluate_gates(const GateLimits& limits, const MethodReport& method, std::int64_t sequences);

// Fills passes_gates of the bundles' rows, report.gates, and report.pass from the candidate's gates and the checks. A
// requested gate fails if it cannot decide. The default gate (report.default_gate) is then left out, and
// report.undecided gives the reason.
void apply_gates(const GateLimits& limits, VerifyReport& report);

// Suggests steps after a failed gate, from the report and the bundle's files.
// For the first candidate row that fails, the most likely cause first. Empty if nothing failed, or if only a longer
// text is needed (GateResult::reason says so). One line each, without a period.
std::vector<std::string> next_steps(const VerifyReport& report);

}  // namespace oscar
