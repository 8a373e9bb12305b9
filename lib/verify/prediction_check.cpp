#include "verify/self_checks.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "report/number_text.h"

namespace oscar {
namespace {

constexpr double kLimit = 4.0;     // factor in either direction
constexpr double kContexts = 2.0;  // KL grows with the quantized share, so contexts that differ more are not comparable
constexpr double kFloor = 1e-5;    // nats; below it, rounding dominates
constexpr double kErrors = 2.0;    // tolerance of the ratio in standard errors

bool comparable(const VerifyReport& r, const PredictedKl& p) {
  const double ratio = static_cast<double>(r.scoring.context) / static_cast<double>(p.context);
  return p.sink == r.sink && p.recent == r.recent && ratio <= kContexts && ratio >= 1.0 / kContexts;
}

// Standard error of the logarithm of measured over predicted KL. It is large if chance can explain a ratio beyond the
// limit. For example, a few hundred tokens with one surprising token measured six times the prediction of a few
// sequences.
double ratio_error(const KlMetrics& measured, const PredictedKl& predicted) {
  return std::hypot(measured.standard_error / std::max(measured.mean, kFloor),
                    predicted.error / std::max(predicted.kl, kFloor));
}

}  // namespace

SelfCheck prediction_check(const VerifyReport& report) {
  SelfCheck check{"prediction", "no bundle that predicts its KL", std::nullopt, kLimit, std::nullopt};
  std::pair<bool, double> worst{false, -1.0};  // failed, distance: a failure is reported before a larger ratio
  for (const BundleFacts& bundle : report.bundles) {
    if (!bundle.prediction) continue;
    const PredictedKl& p = *bundle.prediction;
    for (const MethodReport& m : report.methods) {
      if (!m.candidate() || m.id != bundle.row || m.path != "prefill" ||
          (!m.comparison.empty() && m.comparison != "common")) {
        continue;
      }
      const double ratio = std::max(m.quality.kl.mean, kFloor) / std::max(p.kl, kFloor);
      const std::string detail = "mean KL of " + m.id + " is " + significant(m.quality.kl.mean, 3) + ", " +
                                 significant(ratio, 3) + " x the " + significant(p.kl, 3) + " +- " +
                                 significant(p.error, 2) + " that its measured curves predict";
      if (!comparable(report, p)) {
        if (!check.pass) {
          check.detail = detail + " for context " + grouped(p.context) + " and windows " + std::to_string(p.sink) +
                         "," + std::to_string(p.recent) + ", not those of this run";
        }
        continue;
      }
      const double distance = std::abs(std::log(ratio));
      const bool pass = distance - kErrors * ratio_error(m.quality.kl, p) <= std::log(kLimit);
      const std::pair rank{!pass, distance};
      if (rank <= worst) continue;
      worst = rank;
      check.value = ratio;
      check.pass = pass;
      check.detail = detail + "; at most a factor of " + significant(kLimit, 2) +
                     " either way is allowed, beyond two standard errors";
    }
  }
  return check;
}

}  // namespace oscar
