// Statistics that count less: parts of a moving window.
#include "statistics/statistics_weight.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/errors.h"
#include "statistics/random_statistics.h"

namespace oscar {
namespace {

TEST(StatisticsWeight, DecayWeighsOlderPartsLess) {
  const Statistics a = random_statistics({.tokens = 40, .seed = 1}), b = random_statistics({.tokens = 60, .seed = 2});
  const Statistics m = merge_statistics(decayed_statistics({a, b}, 0.25));
  EXPECT_EQ(m.tokens, 70);  // 40 / 4 + 60
  const at::Tensor expected = 0.25 * a.layers[1].k_gram + b.layers[1].k_gram;
  EXPECT_TRUE(at::allclose(m.layers[1].k_gram, expected, 1e-14, 0.0));
  EXPECT_TRUE(at::allclose(m.layers[1].v_sum, 0.25 * a.layers[1].v_sum + b.layers[1].v_sum, 1e-14, 0.0));
  EXPECT_TRUE(m.layers[0].wo_gram.equal(a.layers[0].wo_gram));
  EXPECT_EQ(m.layers[0].residual_energy[1].item<double>(), 70.0);
  EXPECT_NO_THROW(check_statistics(m, "merged"));
  std::multiset<double> weights;
  for (const Json& run : m.metadata["parts"]) weights.insert(run.value("weight", 1.0));
  EXPECT_EQ(weights, (std::multiset<double>{0.25, 1.0}));
  // A window that moves on: three parts one after the other are three parts at once.
  const Statistics c = random_statistics({.tokens = 80, .seed = 3});
  const Statistics moved = merge_statistics(decayed_statistics({m, c}, 0.5));
  const Statistics at_once = merge_statistics({weighted_statistics(a, 0.125), weighted_statistics(b, 0.5), c});
  EXPECT_EQ(moved.tokens, at_once.tokens);
  EXPECT_TRUE(at::allclose(moved.layers[0].o_gram, at_once.layers[0].o_gram, 1e-13, 0.0));
  // Weight one changes nothing, and the order of parts then does not count.
  EXPECT_TRUE(merge_statistics(decayed_statistics({a, b}, 1.0))
                  .layers[0]
                  .q_gram.equal(merge_statistics({a, b}).layers[0].q_gram));
}

// Counts are whole, so the sums follow the rounded count: the means stay those of the part.
TEST(StatisticsWeight, WeightedMeansAreThoseOfThePart) {
  const Statistics a = random_statistics({.tokens = 7, .rows = 16, .seed = 1});
  for (const double weight : {0.9, 0.4, 0.01}) {
    const Statistics w = weighted_statistics(a, weight);
    EXPECT_EQ(w.tokens, weight == 0.9 ? 6 : weight == 0.4 ? 3 : 1);
    const at::Tensor mean = a.layers[0].k_gram / 7.0, kept = w.layers[0].k_gram / static_cast<double>(w.tokens);
    EXPECT_TRUE(at::allclose(mean, kept, 1e-14, 0.0));
    EXPECT_NO_THROW(check_statistics(w, "weighted"));
    EXPECT_LE(w.layers[0].row_priority.size(), static_cast<std::size_t>(w.tokens));
  }
  EXPECT_THROW(weighted_statistics(a, 0.0), UsageError);
  EXPECT_THROW(weighted_statistics(a, 1.5), UsageError);
}

// Of two parts with as many tokens, one weighed a quarter has a fifth of the merged sample.
TEST(StatisticsWeight, DecayedRowsAreFewer) {
  double old_rows = 0.0, all = 0.0;
  for (int seed = 1; seed <= 40; ++seed) {
    const Statistics a = random_statistics({.layers = 1, .tokens = 400, .rows = 40, .seed = seed});
    const Statistics b = random_statistics({.layers = 1, .tokens = 400, .rows = 40, .seed = 1000 + seed});
    const Statistics m = merge_statistics(decayed_statistics({a, b}, 0.25));
    const std::vector<std::uint64_t>& newest = b.layers[0].row_priority;
    for (const std::uint64_t priority : m.layers[0].row_priority) {
      old_rows += std::binary_search(newest.begin(), newest.end(), priority) ? 0.0 : 1.0;
    }
    all += static_cast<double>(m.layers[0].row_priority.size());
  }
  EXPECT_EQ(all, 1600.0);
  EXPECT_NEAR(old_rows / all, 0.2, 0.04);  // standard error .01
}

}  // namespace
}  // namespace oscar
