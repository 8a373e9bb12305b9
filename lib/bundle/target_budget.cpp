#include "bundle/target_budget.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "bundle/curve_allocation.h"

namespace oscar {
namespace {

constexpr double kStep = 0.125, kLeast = 0.25;  // bits
constexpr double kLeastKl = 1e-9;               // nats: what a ratio is taken of

bool was_measured(const Curves& curves, double bits) {
  return std::any_of(curves.end_to_end.begin(), curves.end_to_end.end(),
                     [&](const EndToEndPoint& point) { return std::abs(point.bits - bits) < 1e-9; });
}

// Nothing for bits that no allocation takes: of a file that is wrong, or below what was measured of every side.
std::optional<PredictedKl> sum_of_sides(const Curves& curves, double bits) {
  try {
    return allocate_estimates(curves, bits).predicted;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

// Measured end-to-end KL over the sum of the estimates, at a budget where both are known.
struct KnownRatio {
  double bits, ratio;
};

std::vector<KnownRatio> known_ratios(const Curves& curves) {
  std::vector<KnownRatio> known;
  for (const EndToEndPoint& point : curves.end_to_end) {
    if (!known.empty() && known.back().bits == point.bits) continue;
    const std::optional<PredictedKl> sum = sum_of_sides(curves, point.bits);
    if (!sum) continue;
    const double measured = allocate_curves(curves, point.bits).predicted.kl;
    known.push_back({point.bits, std::max(measured, kLeastKl) / std::max(sum->kl, kLeastKl)});
  }
  return known;
}

double nearest_ratio(const std::vector<KnownRatio>& known, double bits) {
  if (known.empty()) return 1.0;
  return std::min_element(known.begin(), known.end(),
                          [&](const KnownRatio& a, const KnownRatio& b) {
                            return std::abs(a.bits - bits) < std::abs(b.bits - bits);
                          })
      ->ratio;
}

}  // namespace

std::vector<double> target_budgets(std::int64_t head_dim) {
  const double most = profile_bits({4, 4, 4, 4}, static_cast<int>(head_dim));
  std::vector<double> budgets;
  for (double bits = kLeast; bits < most - 1e-9; bits += kStep) budgets.push_back(bits);
  budgets.push_back(most);
  return budgets;
}

std::vector<BudgetRow> predict_budgets(const Curves& curves) {
  const std::vector<KnownRatio> known = known_ratios(curves);
  std::vector<BudgetRow> rows;
  for (const double bits : target_budgets(curves.head_dim)) {
    const std::optional<PredictedKl> sum = sum_of_sides(curves, bits);
    if (!sum) continue;
    BudgetRow row{bits, *sum, was_measured(curves, bits)};
    if (row.measured) {
      row.predicted = allocate_curves(curves, bits).predicted;
    } else {
      const double ratio = nearest_ratio(known, bits);
      row.predicted.kl *= ratio;
      row.predicted.error *= ratio;
    }
    rows.push_back(row);
  }
  return rows;
}

std::optional<std::size_t> smallest_budget(const std::vector<BudgetRow>& rows, double kl) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].predicted.kl <= kl) return i;
  }
  return std::nullopt;
}

std::size_t best_budget(const std::vector<BudgetRow>& rows) {
  const auto best = std::min_element(
      rows.begin(), rows.end(), [](const BudgetRow& a, const BudgetRow& b) { return a.predicted.kl < b.predicted.kl; });
  return static_cast<std::size_t>(best - rows.begin());
}

std::optional<std::size_t> next_budget(const Curves& curves, double kl) {
  const std::vector<BudgetRow> rows = predict_budgets(curves);
  const std::size_t candidate = smallest_budget(rows, kl).value_or(best_budget(rows));
  if (rows[candidate].measured) return std::nullopt;
  return candidate + target_budgets(curves.head_dim).size() - rows.size();  // rows that are missing are the lowest
}

double perplexity_ratio(double kl) { return std::exp(kl); }
double kl_of_perplexity(double ratio) { return std::log(ratio); }

}  // namespace oscar
