#include "report/sample_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/random.h"

namespace oscar {
namespace {

TEST(Quantile, InterpolatesBetweenOrderStatistics) {
  const std::vector<double> x = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(quantile_sorted(x, 0.0), 1);
  EXPECT_DOUBLE_EQ(quantile_sorted(x, 0.5), 2.5);  // even count: the mean of the middle two
  EXPECT_DOUBLE_EQ(quantile_sorted(x, 0.9), 3.7);  // rank 2.7
  EXPECT_DOUBLE_EQ(quantile_sorted(x, 1.0), 4);
  EXPECT_DOUBLE_EQ(quantile_sorted(std::vector<double>{1, 5, 9}, 0.5), 5);
  EXPECT_DOUBLE_EQ(quantile_sorted(std::vector<double>{7}, 0.999), 7);
}

TEST(Mean, StandardErrorOfKnownValues) {
  const MeanAndError m = mean_and_error(std::vector<double>{1, 2, 3, 4, 5});
  EXPECT_DOUBLE_EQ(m.mean, 3);
  EXPECT_DOUBLE_EQ(m.standard_error, std::sqrt(2.0 / 4.0));  // variance 2 over n, divided by n - 1
  EXPECT_EQ(mean_and_error(std::vector<double>{4}).standard_error, 0);
  EXPECT_NEAR(mean_and_error(std::vector<double>(100, 0.1)).standard_error, 0, 1e-15);
}

TEST(Mean, SurvivesALargeOffset) {
  const MeanAndError m = mean_and_error(std::vector<double>{1e9 + 1, 1e9 + 2, 1e9 + 3});
  EXPECT_NEAR(m.standard_error, std::sqrt(2.0 / 3.0 / 2.0), 1e-6);
}

TEST(Proportion, Error) {
  EXPECT_DOUBLE_EQ(proportion_error(0.5, 101), 0.05);
  EXPECT_EQ(proportion_error(1.0, 10), 0);
  EXPECT_EQ(proportion_error(0.5, 1), 0);
}

double normal(std::uint64_t stream, std::uint64_t n) {  // Box-Muller
  const double u = 1.0 - random_unit(99, stream, 2 * n), v = random_unit(99, stream, 2 * n + 1);
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

// Values of R's binom.confint(method = "wilson") and of the formula by hand: 8 of 8 gives n / (n + z^2).
TEST(Statistics, WilsonInterval) {
  EXPECT_NEAR(wilson_interval(8, 8).low, 8 / (8 + 1.959963984540054 * 1.959963984540054), 1e-12);
  EXPECT_EQ(wilson_interval(8, 8).high, 1.0);
  EXPECT_NEAR(wilson_interval(1, 8).low, 0.0224, 5e-5);
  EXPECT_NEAR(wilson_interval(1, 8).high, 0.4709, 5e-5);
  EXPECT_NEAR(wilson_interval(50, 100).low, 0.4038, 5e-5);
  EXPECT_EQ(wilson_interval(0, 3).low, 0.0);
  EXPECT_EQ(wilson_interval(0, 0).high, 1.0);
}

TEST(Bootstrap, DependsOnTheSeedAlone) {
  std::vector<SequenceSum> sequences;
  for (std::uint64_t i = 0; i < 12; ++i) sequences.push_back({10 * normal(1, i), 10});
  const auto a = bootstrap_mean(sequences, {500, 0.95, 7});
  const auto b = bootstrap_mean(sequences, {500, 0.95, 7});
  const auto c = bootstrap_mean(sequences, {500, 0.95, 8});
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(a->low, b->low);
  EXPECT_EQ(a->high, b->high);
  EXPECT_NE(a->low, c->low);
}

// Each sample, written out: the values of the drawn sequences, sorted.
TEST(Bootstrap, QuantilesAreThoseOfTheDrawnValues) {
  std::vector<std::vector<double>> sequences(7);
  for (std::uint64_t s = 0; s < 7; ++s) {
    for (std::uint64_t i = 0; i < 40 + 13 * s; ++i) sequences[s].push_back(std::floor(4 * normal(s, i)));  // with ties
  }
  const BootstrapOptions options{300, 0.9, 5};
  for (const double fraction : {0.5, 0.9, 0.999, 1.0}) {
    std::vector<double> quantiles;
    for (std::uint64_t sample = 0; sample < 300; ++sample) {
      std::vector<double> drawn;
      for (std::uint64_t draw = 0; draw < 7; ++draw) {
        const auto s = static_cast<std::size_t>(7 * random_unit(5, sample, draw));
        drawn.insert(drawn.end(), sequences[s].begin(), sequences[s].end());
      }
      std::sort(drawn.begin(), drawn.end());
      quantiles.push_back(quantile_sorted(drawn, fraction));
    }
    std::sort(quantiles.begin(), quantiles.end());
    const auto interval = bootstrap_quantile(sequences, fraction, options);
    ASSERT_TRUE(interval);
    EXPECT_NEAR(interval->low, quantile_sorted(quantiles, 0.05), 1e-9) << fraction;
    EXPECT_NEAR(interval->high, quantile_sorted(quantiles, 0.95), 1e-9) << fraction;
  }
}

TEST(Bootstrap, NeedsTwoSequences) {
  EXPECT_FALSE(bootstrap_quantile({{1.0, 2.0}}, 0.999, {}));
  EXPECT_FALSE(bootstrap_mean(std::vector<SequenceSum>{{1.0, 10}}, {}));
  EXPECT_FALSE(bootstrap_mean(std::vector<SequenceSum>{}, {}));
}

TEST(Bootstrap, EqualSequencesGiveAPoint) {
  const auto interval = bootstrap_mean(std::vector<SequenceSum>(5, SequenceSum{3.0, 10}), {});
  ASSERT_TRUE(interval);
  EXPECT_DOUBLE_EQ(interval->low, 0.3);
  EXPECT_DOUBLE_EQ(interval->high, 0.3);
}

TEST(Bootstrap, CoversTheMeanAsOftenAsItSays) {
  constexpr int kTrials = 400, kSequences = 40;
  int covered = 0;
  for (std::uint64_t trial = 0; trial < kTrials; ++trial) {
    std::vector<SequenceSum> sequences;
    for (std::uint64_t i = 0; i < kSequences; ++i) sequences.push_back({5 * (2.0 + normal(100 + trial, i)), 5});
    const auto interval = bootstrap_mean(sequences, {300, 0.95, trial});
    covered += interval->low <= 2.0 && 2.0 <= interval->high ? 1 : 0;
  }
  // 95 % nominal; the percentile interval is a little short at 40 units. Binomial spread of 400 trials: 1.1 %.
  EXPECT_GT(covered, kTrials * 0.90);
  EXPECT_LT(covered, kTrials * 0.99);
}

}  // namespace
}  // namespace oscar
