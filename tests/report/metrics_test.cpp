#include "report/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"

namespace oscar {
namespace {

SequenceScores make(std::int64_t first, std::vector<double> base, std::vector<double> nll, std::vector<double> kl,
                    std::vector<std::uint8_t> top) {
  return {first, std::move(base), std::move(nll), std::move(kl), std::move(top)};
}

TEST(Metrics, KnownRatioAndItsError) {
  // Differences 0.1, 0.3, 0.1, 0.3: mean 0.2, variance 0.01, standard error sqrt(0.01 / 3).
  const std::vector<SequenceScores> s = {make(0, {1, 2}, {1.1, 2.3}, {0.1, 0.2}, {1, 0}),
                                         make(0, {3, 4}, {3.1, 4.3}, {0.3, 0.4}, {1, 1})};
  const QualityMetrics m = summarize(s, {});
  EXPECT_EQ(m.tokens, 4);
  EXPECT_NEAR(m.nll, 2.7, 1e-12);
  EXPECT_NEAR(m.ppl, std::exp(2.7), 1e-12);
  EXPECT_NEAR(m.ln_ppl_ratio, 0.2, 1e-12);
  EXPECT_NEAR(m.ln_ppl_ratio_error, std::sqrt(0.01 / 3), 1e-12);
  EXPECT_NEAR(m.ppl_ratio, std::exp(0.2), 1e-12);
  EXPECT_NEAR(m.ppl_ratio_error, std::exp(0.2) * std::sqrt(0.01 / 3), 1e-12);
  EXPECT_NEAR(m.kl.mean, 0.25, 1e-12);
  EXPECT_NEAR(m.kl.median, 0.25, 1e-12);
  EXPECT_NEAR(m.kl.p90, 0.37, 1e-12);
  EXPECT_EQ(m.kl.max, 0.4);
  EXPECT_EQ(m.same_top1, 0.75);
  ASSERT_TRUE(m.kl.interval);
  EXPECT_LE(m.kl.interval->low, 0.25);
  EXPECT_GE(m.kl.interval->high, 0.25);
}

TEST(Metrics, SharedSpreadCancelsInTheRatio) {
  std::vector<double> base, nll;
  for (int i = 0; i < 1000; ++i) {
    base.push_back(i % 17);
    nll.push_back(i % 17 + 0.5);
  }
  const QualityMetrics m =
      summarize({make(0, base, nll, std::vector<double>(1000, 1), std::vector<std::uint8_t>(1000, 1))}, {});
  EXPECT_GT(m.nll_error, 0.1);
  EXPECT_NEAR(m.ln_ppl_ratio_error, 0, 1e-12);
  EXPECT_FALSE(m.kl.interval);  // one sequence
}

TEST(Metrics, NothingScoredIsRefused) { EXPECT_THROW(summarize({SequenceScores{}}, {}), InputError); }

// The same tokens of a run that scored more: later positions of the first sequences.
TEST(Metrics, ScoresOfAnEarlierRunsTokens) {
  const SequenceScores one = make(320, {1, 2, 3, 4}, {1, 2, 3, 5}, {0.1, 0.2, 0.3, 0.4}, {1, 1, 0, 0});
  const std::vector<SequenceScores> part = scores_from({one, one, one}, 322, 2);
  ASSERT_EQ(part.size(), 2u);
  EXPECT_EQ(part[1].first_position, 322);
  EXPECT_EQ(part[1].kl, (std::vector<double>{0.3, 0.4}));
  EXPECT_EQ(part[1].nll, (std::vector<double>{3, 5}));
  EXPECT_EQ(part[1].baseline_nll, (std::vector<double>{3, 4}));
  EXPECT_EQ(part[1].same_top, (std::vector<std::uint8_t>{0, 0}));
  EXPECT_EQ(scores_from({one}, 320, 7).front().kl.size(), 4u);
}

TEST(Metrics, BucketsHoldTheirPositions) {
  std::vector<double> kl;
  for (int t = 0; t < 100; ++t) kl.push_back(t < 50 ? 1.0 : 3.0);
  const SequenceScores s =
      make(320, std::vector<double>(100), std::vector<double>(100), kl, std::vector<std::uint8_t>(100, 1));
  const std::vector<PositionBucket> b = kl_by_position({s, s}, 320, 420, 4);
  ASSERT_EQ(b.size(), 4u);
  EXPECT_EQ(b[0].from, 320);
  EXPECT_EQ(b[3].to, 420);
  EXPECT_EQ(b[1].tokens, 50);
  EXPECT_DOUBLE_EQ(b[1].kl, 1.0);
  EXPECT_DOUBLE_EQ(b[2].kl, 3.0);
  EXPECT_EQ(kl_by_position({s}, 320, 323, 16).size(), 3u);  // fewer positions than buckets
}

TEST(Metrics, GrowthIsTheLastQuarterOverTheSecond) {
  // Positions 100 to 180: quarters of 20. The third bucket's middle lies in the second quarter, as that of the second.
  const std::vector<PositionBucket> b = {
      {100, 120, 5, 9.0}, {120, 130, 10, 0.1}, {130, 140, 30, 0.3}, {140, 160, 7, 50.0}, {160, 180, 20, 0.5}};
  const std::optional<KlGrowth> g = kl_growth(b);
  ASSERT_TRUE(g);
  EXPECT_NEAR(g->early, (10 * 0.1 + 30 * 0.3) / 40, 1e-12);
  EXPECT_NEAR(g->late, 0.5, 1e-12);
  EXPECT_EQ(g->early_tokens, 40);
  EXPECT_EQ(g->late_tokens, 20);
  EXPECT_NEAR(g->ratio(), 2.0, 1e-12);
  const KlGrowth quiet{0.0, 2e-5, 9, 9};
  EXPECT_NEAR(quiet.ratio(), 2.0, 1e-12) << "against the floor, not infinite";
  EXPECT_FALSE(kl_growth({}));
  EXPECT_FALSE(kl_growth({b[0]}));
  EXPECT_FALSE(kl_growth({b[0], b[3]}));
}

}  // namespace
}  // namespace oscar
