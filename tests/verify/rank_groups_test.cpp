#include "verify/score_store.h"

#include <gtest/gtest.h>

#include <vector>

namespace oscar {
namespace {

const ScoreLayout kEight{0, std::vector<std::int64_t>(8, 2048), 1};

TEST(RankGroups, OneRankHasAll) { EXPECT_EQ(deal_groups(kEight, 1, 1), std::vector<int>(8, 0)); }

// The first sequence counts four times: its layer errors, its second run and the checks of its pages.
TEST(RankGroups, OthersMakeUpForWhatTheFirstSequenceCosts) {
  EXPECT_EQ(deal_groups(kEight, 1, 2), (std::vector<int>{0, 1, 1, 1, 1, 0, 1, 0}));
}

TEST(RankGroups, SequencesOfLayerErrorsStayWithTheFirstRank) {
  const std::vector<int> owners = deal_groups(kEight, 3, 2);
  EXPECT_EQ(std::vector<int>(owners.begin(), owners.begin() + 3), std::vector<int>(3, 0));
}

}  // namespace
}  // namespace oscar
