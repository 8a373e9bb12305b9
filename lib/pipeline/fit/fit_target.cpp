#include "pipeline/fit/fit_target.h"

#include <cmath>

#include "base/errors.h"
#include "base/formatted.h"
#include "transform/profile_allocation.h"

namespace oscar {
namespace {

std::string target_text(const TargetArguments& a) {
  const std::string kl = "KL of at most " + formatted("%.3g", a.kl_target());
  if (!a.preset.empty()) return "preset " + a.preset + ", " + kl;
  return a.perplexity > 0.0 ? "perplexity ratio of at most " + formatted("%.4g", a.perplexity) + ", " + kl : kl;
}

// Every half bit, what was measured end to end, and the choice with its neighbors.
bool shown(const TargetChoice& choice, std::size_t i) {
  const double halves = 2.0 * choice.rows[i].bits;
  const bool near = i + 1 >= choice.chosen && i <= choice.chosen + 1;
  return near || choice.rows[i].measured || halves == std::floor(halves) || i + 1 == choice.rows.size();
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all{{"near-lossless", 0.005}, {"balanced", 0.02}, {"smallest", 0.04}};
  return all;
}

const char* TargetArguments::option() const {
  return !preset.empty() ? "--preset" : perplexity > 0.0 ? "--target-ppl" : "--target-kl";
}

double TargetArguments::kl_target() const {
  for (const Preset& each : presets()) {
    if (preset == each.name) return each.kl;
  }
  return perplexity > 0.0 ? kl_of_perplexity(perplexity) : kl;
}

TargetChoice choose_budget(const Curves& curves, const TargetArguments& a, const std::string& kept) {
  TargetChoice choice{predict_budgets(curves), 0};
  if (const std::optional<std::size_t> found = smallest_budget(choice.rows, a.kl_target())) {
    choice.chosen = *found;
    return choice;
  }
  const BudgetRow& best = choice.rows.at(best_budget(choice.rows));
  throw Error(ExitCode::kGateFailed,
              std::string(a.option()) + ": no budget has a predicted " + target_text(a) + "; the best is " +
                  bits_text(best.bits) + " bits with a KL of " + formatted("%.3g", best.predicted.kl) +
                  ", perplexity ratio " + formatted("%.4f", perplexity_ratio(best.predicted.kl)) +
                  ": ask for that, calibrate on more text, or keep more tokens in BF16 (--windows 64,1024)" + kept);
}

void record_target(Bundle& bundle, const TargetArguments& a, const TargetChoice& choice) {
  Json target = {{"kl", a.kl_target()}, {"bits", choice.bits()}};
  if (!a.preset.empty()) target["preset"] = a.preset;
  if (a.perplexity > 0.0) target["perplexity_ratio"] = a.perplexity;
  bundle.provenance["target"] = std::move(target);
}

std::string target_table(const TargetArguments& a, const TargetChoice& choice) {
  std::string text = " budget  predicted KL        +-  perplexity ratio\n";
  for (std::size_t i = 0; i < choice.rows.size(); ++i) {
    if (!shown(choice, i)) continue;
    const BudgetRow& row = choice.rows[i];
    text += formatted("%7s  %12.3g  %8.2g  %16.4f", bits_text(row.bits).c_str(), row.predicted.kl, row.predicted.error,
                      perplexity_ratio(row.predicted.kl));
    text += row.measured ? "  measured end to end" : "";
    text += i == choice.chosen ? std::string(row.measured ? "," : " ") + " chosen: " + target_text(a) + "\n" : "\n";
  }
  return text;
}

Json target_json(const TargetArguments& a, const TargetChoice& choice) {
  Json rows = Json::array();
  for (const BudgetRow& row : choice.rows) {
    rows.push_back({{"bits", row.bits},
                    {"predicted_kl", row.predicted.kl},
                    {"standard_error", row.predicted.error},
                    {"perplexity_ratio", perplexity_ratio(row.predicted.kl)},
                    {"measured", row.measured}});
  }
  return {{"option", a.option()}, {"kl", a.kl_target()}, {"bits", choice.bits()}, {"budgets", std::move(rows)}};
}

}  // namespace oscar
