// The budget that a target chooses, on made curves whose sums are known.
#include "bundle/target_budget.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"

namespace oscar {
namespace {

// One layer of head size 64 whose KL is 2^-bits for each side, and analytic costs of the same shape.
Curves halving_curves() {
  Curves c;
  c.head_dim = 64, c.sink = 64, c.recent = 256, c.context = 2048, c.sequences = 1;
  for (const Side side : {Side::kKey, Side::kValue}) {
    SideCurve curve{0, side, {}, {}};
    for (const Widths& widths : falling_profiles()) {
      const double kl = std::exp2(-profile_bits(widths, 64));
      curve.analytic.push_back(kl);
      curve.points.push_back(curve_point(widths, {kl}));
    }
    c.curves.push_back(curve);
  }
  return c;
}

double sum_at(const Curves& c, double bits) { return allocate_estimates(c, bits).predicted.kl; }

// What measuring would find: this many times the sum of the sides.
void measure(Curves& c, std::size_t index, double times) {
  const double bits = target_budgets(c.head_dim)[index];
  const CurveAllocation widths = allocate_estimates(c, bits);
  const double kl = times * widths.predicted.kl;
  c.end_to_end.push_back({bits, "measured", widths.key, widths.value, kl, 0.0, {kl}});
}

TEST(TargetBudget, BudgetsAreEighthsOfABitUpToFourBitsEverywhere) {
  const std::vector<double> of64 = target_budgets(64), of128 = target_budgets(128);
  EXPECT_EQ(of64.size(), 35u);
  EXPECT_EQ(of64.front(), 0.25);
  EXPECT_EQ(of64[1], 0.375);
  EXPECT_EQ(of64.back(), 4.5);
  EXPECT_EQ(of128.size(), 33u);
  EXPECT_EQ(of128.back(), 4.25);
}

TEST(TargetBudget, WithoutAWholeTheSumPredicts) {
  const Curves c = halving_curves();
  const std::vector<BudgetRow> rows = predict_budgets(c);
  ASSERT_EQ(rows.size(), 35u);
  EXPECT_NEAR(rows.back().predicted.kl, 2.0 * std::exp2(-4.5), 1e-9);
  for (const BudgetRow& row : rows) EXPECT_DOUBLE_EQ(row.predicted.kl, sum_at(c, row.bits)) << row.bits;
  const std::optional<std::size_t> one = smallest_budget(rows, rows[6].predicted.kl);  // 1 bit
  ASSERT_TRUE(one);
  EXPECT_EQ(rows[*one].predicted.kl, rows[6].predicted.kl);
  EXPECT_TRUE(*one == 0 || rows[*one - 1].predicted.kl > rows[6].predicted.kl);
  EXPECT_EQ(smallest_budget(rows, 0.9 * rows.back().predicted.kl), std::nullopt);
  EXPECT_EQ(rows[best_budget(rows)].bits, 4.5);
}

TEST(TargetBudget, AWholeCorrectsItsNeighbors) {
  Curves c = halving_curves();
  measure(c, 6, 3.0);   // 1 bit
  measure(c, 22, 1.5);  // 3 bits
  const std::vector<BudgetRow> rows = predict_budgets(c);
  EXPECT_TRUE(rows[6].measured && rows[22].measured && !rows[7].measured);
  EXPECT_DOUBLE_EQ(rows[6].predicted.kl, 3.0 * sum_at(c, 1.0));
  EXPECT_NEAR(rows[7].predicted.kl, 3.0 * sum_at(c, 1.125), 1e-12);
  EXPECT_NEAR(rows[20].predicted.kl, 1.5 * sum_at(c, 2.75), 1e-12);
}

// End-to-end KL is measured until the choice is one that was measured, whatever they are off by.
TEST(TargetBudget, TheSearchEndsAtTheSmallestMeasuredBudget) {
  for (const double times : {0.4, 1.0, 1.7, 5.0}) {
    Curves c = halving_curves();
    const double target = 0.5;
    std::size_t measured = 0;
    while (const std::optional<std::size_t> next = next_budget(c, target)) {
      ASSERT_LT(++measured, 6u);
      measure(c, *next, times);
    }
    const std::vector<BudgetRow> rows = predict_budgets(c);
    const std::optional<std::size_t> found = smallest_budget(rows, target);
    ASSERT_TRUE(found) << times;
    EXPECT_TRUE(rows[*found].measured);
    EXPECT_LE(times * sum_at(c, rows[*found].bits), target);
    EXPECT_TRUE(*found == 0 || times * sum_at(c, rows[*found - 1].bits) > target) << times;
  }
}

TEST(TargetBudget, ATargetThatNothingMeetsMeasuresTheBest) {
  Curves c = halving_curves();
  const std::optional<std::size_t> next = next_budget(c, 1e-6);
  ASSERT_EQ(next, std::size_t{34});
  measure(c, *next, 2.0);
  EXPECT_EQ(next_budget(c, 1e-6), std::nullopt);
  EXPECT_EQ(smallest_budget(predict_budgets(c), 1e-6), std::nullopt);
}

// Curves of a file may lack analytic costs and have end-to-end KLs of other budgets.
TEST(TargetBudget, CurvesThatAllowFewBudgets) {
  Curves c = halving_curves();
  for (SideCurve& curve : c.curves) {
    curve.analytic.clear();
    std::erase_if(curve.points, [](const CurvePoint& p) { return profile_bits(p.widths, 64) < 2.0; });
  }
  c.end_to_end.push_back({9.0, "measured", {{4, 4, 4, 4}}, {{4, 4, 4, 4}}, 0.1, 0.0, {0.1}});
  const std::vector<BudgetRow> rows = predict_budgets(c);
  ASSERT_FALSE(rows.empty());
  EXPECT_GE(rows.front().bits, 2.0);
  const std::optional<std::size_t> next = next_budget(c, rows.front().predicted.kl);
  ASSERT_TRUE(next);
  EXPECT_EQ(target_budgets(64)[*next], rows.front().bits);
}

TEST(TargetBudget, PerplexityIsTheExponentialOfTheKl) {
  EXPECT_NEAR(perplexity_ratio(0.02), 1.02020134, 1e-8);
  EXPECT_NEAR(kl_of_perplexity(1.01), 0.00995033, 1e-8);
}

}  // namespace
}  // namespace oscar
