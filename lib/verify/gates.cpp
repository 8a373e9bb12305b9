#include "verify/gates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"
#include "report/number_text.h"

namespace oscar {
namespace {

void require_range(const std::optional<double>& limit, const char* flag, double low, double high) {
  if (limit && !(std::isfinite(*limit) && *limit >= low && *limit <= high)) {
    throw UsageError(std::string(flag) + " is " + significant(*limit, 6) + ", expected a number from " +
                     significant(low, 3) + (std::isfinite(high) ? " to " + significant(high, 3) : " upwards"));
  }
}

// The number of needles at which Wilson's interval of this score is within the limit; 0: none. Its end is defined by
// |p - limit| = z sqrt(limit (1 - limit) / n), see sample_statistics.h.
std::int64_t needles_needed(double score, double limit) {
  constexpr double z = kNormalQuantile;
  const double gap = score - limit;
  const double needed = gap > 0.0 ? std::ceil(z * z * limit * (1.0 - limit) / (gap * gap) - 1e-9) : 0.0;
  return needed <= 1e6 && limit < 1.0 ? static_cast<std::int64_t>(needed) : 0;
}

// The lower end of the interval at the worst length decides.
GateResult gate_by_needles(const MethodReport& method, double limit) {
  GateResult gate{"min_niah", method.id, method.path, limit, std::nullopt, false};
  const TaskScore* worst = nullptr;
  for (const TaskScore& task : method.tasks) {
    if (task.task != "niah") continue;
    if (!task.score) return gate;
    if (worst == nullptr || task.interval.low < worst->interval.low) worst = &task;
    gate.value = gate.value ? std::min(*gate.value, *task.score) : *task.score;
  }
  if (worst == nullptr) return gate;
  gate.bound = worst->interval.low;
  if (!(*gate.value >= limit)) return gate;
  gate.pass = *gate.bound >= limit;
  if (gate.pass) return gate;
  const std::int64_t needed = needles_needed(*worst->score, limit);
  gate.reason =
      needed > 0 ? "too few needles for a gate: score at least " + grouped(needed) + " that BF16 finds (--task-prompts)"
                 : "no number of needles shows a score this near the limit: lower it";
  return gate;
}

// The number of sequences at which a proportionally narrower interval would be within the limit; 0: impractically many.
std::int64_t sequences_needed(double value, double bound, double limit, std::int64_t sequences) {
  const double shrink = std::abs(bound - value) / std::abs(limit - value);
  const double needed = std::ceil(static_cast<double>(sequences) * shrink * shrink - 1e-6);
  return needed <= 100.0 * static_cast<double>(sequences) ? static_cast<std::int64_t>(needed) : 0;
}

// The gates on the figures of one text.
std::vector<GateResult> gates_on(const GateLimits& limits, const MethodReport& method, const QualityMetrics& q,
                                 std::int64_t sequences) {
  std::vector<GateResult> gates;
  const auto add = [&](const std::optional<double>& limit, const char* name, double value,
                       const std::optional<Interval>& interval, GateSide side) {
    if (limit) gates.push_back(gate_by_interval(method, name, *limit, value, interval, sequences, side));
  };
  add(limits.max_kl, "max_kl", q.kl.mean, q.kl.interval, GateSide::kUpper);
  add(limits.max_kl_p999, "max_kl_p999", q.kl.p999, q.kl.p999_interval, GateSide::kUpper);
  if (limits.max_kl_p999 && q.kl.p999 <= *limits.max_kl_p999 && q.tokens < kLeastTailTokens) {
    gates.back().pass = false;
    gates.back().reason = "too few tokens for the 99.9% quantile: score at least " + grouped(kLeastTailTokens);
  }
  add(limits.max_ppl_ratio, "max_ppl_ratio", q.ppl_ratio, q.ppl_ratio_interval, GateSide::kUpper);
  add(limits.min_top1, "min_top1", q.same_top1, q.same_top1_interval, GateSide::kLower);
  return gates;
}

// The default gate says only what it can: undecided texts are left out, and then no text passes.
void leave_out_undecided(std::vector<GateResult>& gates, std::string& undecided) {
  const auto unsure = std::find_if(gates.begin(), gates.end(), [](const GateResult& g) { return !g.reason.empty(); });
  if (unsure == gates.end()) return;
  if (unsure->decides) undecided = (unsure->text.empty() ? "" : unsure->text + ": ") + unsure->reason;
  std::erase_if(gates, [](const GateResult& g) { return g.pass || !g.reason.empty(); });
}

}  // namespace

GateResult gate_by_interval(const MethodReport& method, const char* name, double limit, double value,
                            const std::optional<Interval>& interval, std::int64_t sequences, GateSide side) {
  const double sign = side == GateSide::kUpper ? 1.0 : -1.0;
  GateResult gate{name, method.id, method.path, limit, value, false};
  if (interval) gate.bound = side == GateSide::kUpper ? interval->high : interval->low;
  if (!(sign * value <= sign * limit)) return gate;
  if (sequences < kLeastSequences) {
    gate.reason = "too few sequences for a gate: score at least " + std::to_string(kLeastSequences);
  } else if (!gate.bound) {
    gate.reason = "a gate needs the confidence interval: leave --bootstrap as it is";
  } else if (sign * *gate.bound <= sign * limit) {
    gate.pass = true;
  } else {
    const std::int64_t needed = sequences_needed(value, *gate.bound, limit, sequences);
    gate.reason = "the interval is too wide: " + (needed > 0 ? "score at least " + grouped(needed) + " sequences"
                                                             : "the value is too near the limit, spend more bits");
  }
  return gate;
}

void check_gate_limits(const GateLimits& limits, bool has_evaluated_method, const std::vector<std::string>& tasks) {
  const double unbounded = std::numeric_limits<double>::infinity();
  require_range(limits.max_kl, "--max-kl", 0, unbounded);
  require_range(limits.max_kl_p999, "--max-kl-p999", 0, unbounded);
  require_range(limits.max_ppl_ratio, "--max-ppl-ratio", 0, unbounded);
  require_range(limits.min_top1, "--min-top1", 0, 1);
  require_range(limits.min_niah, "--min-niah", 0, 1);
  require_range(limits.max_kl_increase, "--max-kl-increase", 0, unbounded);
  if ((limits.any() || limits.max_kl_increase) && !has_evaluated_method) {
    throw UsageError("a gate tests the method of a bundle, and none was given: add --bundle or --rotations");
  }
  if (limits.min_niah && std::find(tasks.begin(), tasks.end(), "niah") == tasks.end()) {
    throw UsageError("--min-niah needs the needle task, which this run does not compute: add --tasks niah");
  }
}

std::vector<GateResult> evaluate_gates(const GateLimits& limits, const MethodReport& method, std::int64_t sequences) {
  std::vector<GateResult> gates;
  if (method.texts.empty()) gates = gates_on(limits, method, method.quality, sequences);
  for (const TextQuality& text : method.texts) {
    for (GateResult& gate : gates_on(limits, method, text.quality, text.sequences)) {
      gate.text = text.text;
      gates.push_back(std::move(gate));
    }
  }
  if (limits.min_niah) gates.push_back(gate_by_needles(method, *limits.min_niah));
  for (GateResult& gate : gates) gate.decides = !method.beside;
  return gates;
}

void apply_gates(const GateLimits& limits, VerifyReport& report) {
  report.gates.clear();
  report.undecided.clear();
  bool pass = true;
  for (MethodReport& method : report.methods) {
    method.passes_gates.reset();
    if (!limits.any() || !method.quantized || !method.evaluated) continue;
    std::vector<GateResult> gates = evaluate_gates(limits, method, report.scoring.sequences);
    if (report.default_gate) leave_out_undecided(gates, report.undecided);
    if (gates.empty()) continue;
    method.passes_gates = std::all_of(gates.begin(), gates.end(), [](const GateResult& g) { return g.pass; });
    pass = pass && (method.beside || *method.passes_gates);
    report.gates.insert(report.gates.end(), gates.begin(), gates.end());
  }
  for (const SelfCheck& check : report.checks) pass = pass && check.pass.value_or(true);
  report.pass = pass;
}

}  // namespace oscar
