#include "transform/compose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace oscar {
namespace {

using ::testing::ElementsAre;

TEST(Permutation, PublishedOrderOfEight) {
  EXPECT_THAT(bit_reversal_permutation(8), ElementsAre(7, 3, 5, 1, 6, 2, 4, 0));
}

TEST(Permutation, BitReverse) {
  EXPECT_EQ(bit_reverse(1, 3), 4);
  EXPECT_EQ(bit_reverse(6, 3), 3);
  EXPECT_EQ(bit_reverse(0, 0), 0);
}

TEST(Permutation, BlocksStayWhereTheyAre) {
  // 12 = 3 blocks of 4; inside a block 3 1 2 0.
  EXPECT_THAT(bit_reversal_permutation(12), ElementsAre(3, 1, 2, 0, 7, 5, 6, 4, 11, 9, 10, 8));
}

TEST(Permutation, RanksAreDealtToAndFro) {
  // Block 0: ranks 0, 5, 6, 11; block 1: 1, 4, 7, 10; block 2: 2, 3, 8, 9.
  EXPECT_THAT(rank_distribution(12), ElementsAre(0, 5, 6, 11, 1, 4, 7, 10, 2, 3, 8, 9));
  EXPECT_THAT(rank_distribution(4), ElementsAre(0, 1, 2, 3));
}

class PermutationOfSize : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(PermutationOfSize, BothAreBijections) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(GetParam()));
  std::iota(all.begin(), all.end(), 0);
  for (std::vector<std::int64_t> p : {bit_reversal_permutation(GetParam()), rank_distribution(GetParam())}) {
    std::sort(p.begin(), p.end());
    EXPECT_EQ(p, all);
  }
}

TEST_P(PermutationOfSize, EveryBlockGetsTheSameRankSumWithinOneCard) {
  const std::int64_t d = GetParam(), block = hadamard_block(d);
  if (block % 2 != 0) return;
  const std::vector<std::int64_t> ranks = rank_distribution(d);
  for (std::int64_t start = 0; start < d; start += block) {
    EXPECT_EQ(std::accumulate(ranks.begin() + start, ranks.begin() + start + block, std::int64_t{0}),
              block * (d - 1) / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PermutationOfSize, ::testing::Values(1, 2, 8, 12, 64, 80, 96, 128, 256));

}  // namespace
}  // namespace oscar
