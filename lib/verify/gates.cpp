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

std::optional<double> worst_needle_score(const MethodReport& method) {
  std::optional<double> worst;
  for (const TaskScore& task : method.tasks) {
    if (task.task != "niah") continue;
    if (!task.score) return std::nullopt;
    worst = worst ? std::min(*worst, *task.score) : *task.score;
  }
  return worst;
}

GateResult at_most(const MethodReport& method, const char* name, double limit, std::optional<double> value) {
  return {name, method.id, method.path, limit, value, value && *value <= limit};
}

GateResult at_least(const MethodReport& method, const char* name, double limit, std::optional<double> value) {
  return {name, method.id, method.path, limit, value, value && *value >= limit};
}

}  // namespace

void check_gate_limits(const GateLimits& limits, bool has_judged_method, const std::vector<std::string>& tasks) {
  const double unbounded = std::numeric_limits<double>::infinity();
  require_range(limits.max_kl, "--max-kl", 0, unbounded);
  require_range(limits.max_ppl_ratio, "--max-ppl-ratio", 0, unbounded);
  require_range(limits.min_top1, "--min-top1", 0, 1);
  require_range(limits.min_niah, "--min-niah", 0, 1);
  require_range(limits.max_kl_increase, "--max-kl-increase", 0, unbounded);
  if ((limits.any() || limits.max_kl_increase) && !has_judged_method) {
    throw UsageError("a gate judges the method of a bundle, and none was given: add --bundle or --rotations");
  }
  if (limits.min_niah && std::find(tasks.begin(), tasks.end(), "niah") == tasks.end()) {
    throw UsageError("--min-niah needs the needle task, which this run does not compute: add --tasks niah");
  }
}

std::vector<GateResult> evaluate_gates(const GateLimits& limits, const MethodReport& method) {
  std::vector<GateResult> gates;
  if (limits.max_kl) gates.push_back(at_most(method, "max_kl", *limits.max_kl, method.quality.kl.mean));
  if (limits.max_ppl_ratio) {
    gates.push_back(at_most(method, "max_ppl_ratio", *limits.max_ppl_ratio, method.quality.ppl_ratio));
  }
  if (limits.min_top1) gates.push_back(at_least(method, "min_top1", *limits.min_top1, method.quality.same_top1));
  if (limits.min_niah) gates.push_back(at_least(method, "min_niah", *limits.min_niah, worst_needle_score(method)));
  return gates;
}

void apply_gates(const GateLimits& limits, VerifyReport& report) {
  report.gates.clear();
  bool pass = true;
  for (MethodReport& method : report.methods) {
    method.passes_gates.reset();
    if (!limits.any() || !method.quantised) continue;
    const std::vector<GateResult> gates = evaluate_gates(limits, method);
    method.passes_gates = std::all_of(gates.begin(), gates.end(), [](const GateResult& g) { return g.pass; });
    if (!method.judged) continue;
    pass = pass && *method.passes_gates;
    report.gates.insert(report.gates.end(), gates.begin(), gates.end());
  }
  for (const SelfCheck& check : report.checks) pass = pass && check.pass.value_or(true);
  report.pass = pass;
}

}  // namespace oscar
