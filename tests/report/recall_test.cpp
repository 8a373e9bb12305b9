#include "report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "report/report.h"
#include "report/sample_report.h"

namespace oscar {
namespace {

using Positions = std::vector<std::int64_t>;

TEST(Recall, PhrasesFromBeforeTheWindow) {
  //                                      0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17
  const std::vector<std::int32_t> ids = {9, 1, 2, 3, 4, 5, 8, 7, 6, 9, 0, 8, 1, 2, 3, 4, 5, 5};
  EXPECT_EQ(repeated_tokens(ids, 0, 10), Positions{16}) << "1 2 3 4 5 at 1 and at 12: its 5 is 11 tokens later";
  EXPECT_EQ(repeated_tokens(ids, 1, 10), Positions{16});
  EXPECT_EQ(repeated_tokens(ids, 0, 11), Positions{}) << "the first one is in the recent window";
  EXPECT_EQ(repeated_tokens(ids, 2, 10), Positions{}) << "the first one begins in the sink window";
  EXPECT_EQ(repeated_tokens({}, 0, 0), Positions{});
}

TEST(Recall, TheLatestOccurrenceCounts) {
  const std::vector<std::int32_t> other = {1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 7, 1, 2, 3, 4, 5};
  EXPECT_EQ(repeated_tokens(other, 0, 2), Positions{}) << "the phrase last ended with 6";
  const std::vector<std::int32_t> near = {1, 2, 3, 4, 5, 0, 0, 0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5};
  EXPECT_EQ(repeated_tokens(near, 0, 6), Positions{12}) << "the second repetition reads the window";
}

TEST(Recall, SharesOfBothCaches) {
  // Position 2 has the first scores, so it predicts token 3. -ln 0.5 = 0.69.
  const SequenceScores one{2, {0.1, 0.6, 0.7, 2.0}, {0.1, 0.7, 0.6, 2.0}, {0, 0, 0, 0}, {1, 1, 1, 1}};
  const SequenceScores two{2, {0.1}, {0.8}, {0}, {1}};
  const auto r = recall({one, two}, {{2, 3, 4, 7}, {3}});
  ASSERT_TRUE(r);
  EXPECT_EQ(r->tokens, 3) << "tokens 2 and 7 have no score";
  EXPECT_DOUBLE_EQ(r->baseline, 1.0);
  EXPECT_DOUBLE_EQ(r->share, 1.0 / 3.0);
  EXPECT_DOUBLE_EQ(r->baseline_error, 0.0);
  EXPECT_GT(r->error, 0.2);
  EXPECT_FALSE(recall({one}, {{}}));
  EXPECT_FALSE(recall({}, {}));
}

TEST(Recall, IsToldBeforeTheVerdict) {
  VerifyReport r = sample_report({0.1, 1.1, 0.1, 0.5});
  EXPECT_THAT(report_table(r), testing::Not(testing::HasSubstr("repeated phrases")));
  r.methods[2].recall = RecallMetrics{1234, 0.75, 0.5, 0.01, 0.02};
  EXPECT_THAT(report_table(r),
              testing::HasSubstr("repeated phrases: oscar (prefill) predicts 50.0% of 1,234, the BF16 cache 75.0%\n"));
  EXPECT_EQ(parse_json(report_json(r), "report")["methods"][2]["recall"]["share"], 0.5);
}

}  // namespace
}  // namespace oscar
