#include "verify/gates.h"

#include <algorithm>
#include <optional>

#include "base/errors.h"
#include "bundle/curve_allocation.h"
#include "registry/registry.h"
#include "report/number_text.h"

namespace oscar {
namespace {

constexpr std::int64_t kUsualTokens = 30000;  // the default of oscar-collect --tokens
constexpr double kMostBits = 4.25, kBitStep = 0.25;
constexpr double kLeastKl = 1e-6;  // nats; below it, the ratio of measured to predicted KL has no meaning

// The first candidate row with a value beyond its limit.
const MethodReport* failed_row(const VerifyReport& report) {
  for (const MethodReport& m : report.methods) {
    for (const GateResult& gate : report.gates) {
      if (!gate.pass && gate.reason.empty() && m.candidate() && gate.method == m.id && gate.path == m.path) return &m;
    }
  }
  return nullptr;
}

std::optional<double> kl_limit(const VerifyReport& report, const MethodReport& row) {
  for (const GateResult& gate : report.gates) {
    if (gate.name == "max_kl" && gate.method == row.id && gate.path == row.path) return gate.limit;
  }
  return std::nullopt;
}

// The KL predicted by the curves, times their prediction error on this text.
std::optional<double> predicted(const Curves& curves, double bits, double off_by) {
  try {
    return allocate_estimates(curves, bits).predicted.kl * off_by;
  } catch (const Error&) {  // no bit widths fit this budget
    return std::nullopt;
  }
}

std::string budget_step(const VerifyReport& report, const MethodReport& row, const BundleFacts& bundle) {
  const MethodRow* method = find_method(bundle.method);
  if (method == nullptr || !method->allocates_bits) {
    return "fit --method " + preferred_method().id + ", which gives more bits to the layers that need them; --for " +
           "transformers and vllm carry it";
  }
  const std::optional<double> limit = kl_limit(report, row);
  if (!bundle.curves || !bundle.prediction || !limit) {
    return row.code_bits < 4.0 ? "spend more bits: oscar-fit --bits " + bits_text(row.code_bits < 3.0 ? 3.0 : 4.0) +
                                     (row.code_bits < 3.0 ? ", then 4" : "")
                               : "keep more tokens in BF16: oscar-fit --windows 64,1024";
  }
  const double off_by = std::max(row.quality.kl.mean, kLeastKl) / std::max(bundle.prediction->kl, kLeastKl);
  for (double bits = (static_cast<double>(static_cast<std::int64_t>(row.code_bits / kBitStep)) + 1.0) * kBitStep;
       bits <= kMostBits; bits += kBitStep) {
    const std::optional<double> kl = predicted(*bundle.curves, bits, off_by);
    if (!kl || *kl > *limit) continue;
    return "spend " + bits_text(bits) + " bits, at which the measured curves predict a KL of " + significant(*kl, 2) +
           ": oscar-fit STATISTICS --bits " + bits_text(bits) + " --curves " + bundle.source + "/curves.json";
  }
  return "no budget up to " + bits_text(kMostBits) + " bits passes by the measured curves: keep more tokens in BF16 " +
         "(oscar-fit --windows 64,1024)";
}

// What tells an engine's fault from the loss of its bundle: the same bundle in this process.
std::vector<std::string> served_steps(const VerifyReport& report, const MethodReport& row) {
  for (const MethodReport& m : report.methods) {
    if (!m.evaluated || !m.beside) continue;
    return {"the bundle has a KL of " + significant(m.quality.kl.mean, 3) + " here and " +
            significant(row.quality.kl.mean, 3) +
            " as served: what differs is the engine, its version and its options, or the model that it serves"};
  }
  return {"pass the --bundle that is served: its KL here tells the loss of the codes from a fault of the engine"};
}

}  // namespace

std::vector<std::string> next_steps(const VerifyReport& report) {
  const MethodReport* row = failed_row(report);
  if (row != nullptr && report.served) return served_steps(report, *row);
  const BundleFacts* bundle = row == nullptr ? nullptr : bundle_of(report, *row);
  if (bundle == nullptr) return {};
  std::vector<std::string> steps;
  if (bundle->calibration_tokens > 0 && bundle->calibration_tokens < kUsualTokens) {
    steps.push_back("calibrate on more text: " + grouped(bundle->calibration_tokens) + " tokens were used, " +
                    grouped(kUsualTokens) + " are usual (--tokens)");
  }
  if (bundle->longest_calibration > 0 && 2 * bundle->longest_calibration < report.scoring.context) {
    steps.push_back("calibrate on longer sequences: the longest had " + grouped(bundle->longest_calibration) +
                    " tokens, and contexts of " + grouped(report.scoring.context) + " are scored");
  }
  steps.push_back(budget_step(report, *row, *bundle));
  if (const std::string layers = worst_layers_text(report, *row); !layers.empty()) {
    steps.push_back("look at the layers that lose most (attention KL): " + layers);
  }
  return steps;
}

}  // namespace oscar
