// Orders of channels: known answers, and the best of all matchings where these can be counted.
#include "rotation/channel_groups.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace oscar {
namespace {

using testing::ElementsAre;
using testing::Pair;
using testing::UnorderedElementsAre;

// The cheapest perfect matching of the nodes outside `used`, by trying all.
double cheapest(const at::Tensor& cost, std::uint64_t used) {
  const std::int64_t n = cost.size(0);
  std::int64_t first = 0;
  while (first < n && ((used >> first) & 1) != 0) ++first;
  if (first == n) return 0.0;
  double best = std::numeric_limits<double>::infinity();
  for (std::int64_t other = first + 1; other < n; ++other) {
    if (((used >> other) & 1) != 0) continue;
    const std::uint64_t next = used | (std::uint64_t{1} << first) | (std::uint64_t{1} << other);
    best = std::min(best, cost[first][other].item<double>() + cheapest(cost, next));
  }
  return best;
}

at::Tensor random_costs(std::int64_t n) {
  const at::Tensor x = at::rand({n, n}, at::kDouble);
  return (x + x.t()) * 0.5;
}

TEST(PairMatching, TakesTheOnePairingThatCostsNothing) {
  at::Tensor cost = at::ones({6, 6}, at::kDouble);
  for (const auto& [a, b] : {std::pair{0, 5}, {1, 3}, {2, 4}}) cost[a][b] = cost[b][a] = 0.0;
  const PairMatching found = match_pairs(cost);
  EXPECT_THAT(found.pairs, ElementsAre(Pair(0, 5), Pair(1, 3), Pair(2, 4)));
  EXPECT_DOUBLE_EQ(found.cost, 0.0);
}

TEST(PairMatching, IsTheCheapestOfAllForTenNodes) {
  at::manual_seed(17);
  for (int trial = 0; trial < 10; ++trial) {
    const at::Tensor cost = random_costs(10);
    const PairMatching found = match_pairs(cost);
    EXPECT_NEAR(found.cost, cheapest(cost, 0), 1e-12) << trial;
    EXPECT_LE(found.bound, found.cost + 1e-12) << trial;
  }
}

TEST(PairMatching, IsNearItsBoundForTheSizesOfModels) {
  at::manual_seed(19);
  for (const std::int64_t n : {32, 64}) {
    const PairMatching found = match_pairs(random_costs(n));
    EXPECT_LE(found.bound, found.cost + 1e-12);
    EXPECT_LT(found.cost, 1.15 * found.bound) << n;
  }
}

TEST(ChannelGroups, DealtGroupsHaveEqualVolume) {
  // Variances 2^0 .. 2^7 in two groups of four: each gets 14 of the 28 doublings.
  const at::Tensor variances = at::pow(2.0, at::arange(8, at::kDouble));
  const std::vector<std::int64_t> order = dealt_channels(variances, 4);
  double volume = 0.0;
  for (std::size_t i = 0; i < 4; ++i) volume += static_cast<double>(order[i]);
  EXPECT_EQ(volume, 14.0);
  EXPECT_THAT(order, UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(ChannelGroups, PairsThatGoTogetherShareAGroup) {
  // 16 channels, pairs (i, i + 8). Pairs 0 and 5, 1 and 4, ... depend on one hidden number, so that their joint volume
  // is small; the second step joins sets of equal size with nothing to choose by.
  at::manual_seed(23);
  at::Tensor rows = at::randn({4000, 16}, at::kDouble);
  for (const auto& [a, b] : {std::pair{0, 5}, {1, 4}, {2, 7}, {3, 6}}) {
    rows.select(1, b).copy_(rows.select(1, a) + 0.05 * rows.select(1, b));
    rows.select(1, b + 8).copy_(rows.select(1, a + 8) + 0.05 * rows.select(1, b + 8));
  }
  const std::vector<std::int64_t> order = matched_channels(at::cov(rows.t()), 4);
  for (std::size_t i = 0; i < 16; i += 4) {
    const std::int64_t pair = order[i] % 8,
                       partner = std::vector<std::int64_t>{5, 4, 7, 6, 1, 0, 3, 2}[static_cast<std::size_t>(pair)];
    const std::vector<std::int64_t> group(order.begin() + static_cast<std::ptrdiff_t>(i),
                                          order.begin() + static_cast<std::ptrdiff_t>(i) + 4);
    EXPECT_THAT(group, UnorderedElementsAre(pair, pair + 8, partner, partner + 8));
  }
}

}  // namespace
}  // namespace oscar
