#include "verify/score_store.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>

#include "base/errors.h"

namespace oscar {
namespace {

SequenceScores scores_of(std::size_t tokens, double first) {
  SequenceScores s{320, {}, {}, {}, {}};
  for (std::size_t t = 0; t < tokens; ++t) {
    const double x = first + static_cast<double>(t);
    s.baseline_nll.push_back(x), s.nll.push_back(x + 0.25), s.kl.push_back(x + 0.5);
    s.same_top.push_back(t % 3 == 0 ? 1 : 0);
  }
  return s;
}

TEST(ScoreStore, GivesRowsBackAsTheyCame) {
  ScoreStore store;
  store.add_group({{scores_of(5, 0), scores_of(7, 100)}, {scores_of(5, 1000), scores_of(7, 1100)}}, {});
  store.add_group({{scores_of(3, 200)}, {scores_of(3, 1200)}}, {});
  EXPECT_EQ(store.groups(), 2u);
  for (std::size_t r = 0; r < 2; ++r) {
    const std::vector<SequenceScores> row = store.row(r);
    ASSERT_EQ(row.size(), 3u);
    const std::size_t lengths[] = {5, 7, 3};
    for (std::size_t s = 0; s < 3; ++s) {
      const SequenceScores expected =
          scores_of(lengths[s], 1000.0 * static_cast<double>(r) + 100.0 * static_cast<double>(s));
      EXPECT_EQ(row[s].first_position, 320);
      EXPECT_EQ(row[s].baseline_nll, expected.baseline_nll);
      EXPECT_EQ(row[s].nll, expected.nll);
      EXPECT_EQ(row[s].kl, expected.kl);
      EXPECT_EQ(row[s].same_top, expected.same_top);
    }
  }
  EXPECT_THROW(store.row(2), std::out_of_range);
}

// The record of one group of two rows and two sequences, as add_group() writes it.
WorkRecord record_of(const ScoreLayout& layout) {
  WorkRecord record;
  for (std::size_t row = 0; row < 2; ++row) {
    std::vector<double>& list = record["row" + std::to_string(row)];
    double score = 0.0;
    for (const std::int64_t n : layout.tokens) {
      for (std::int64_t i = 0; i < 3 * n; ++i) list.push_back(score++);
      list.insert(list.end(), static_cast<std::size_t>(n), 1.0);
    }
  }
  return record;
}

TEST(ScoreStore, ReadsOnlyScoresOfTheRun) {
  const ScoreLayout layout{320, {5, 7}, 2};
  const auto read = [&](const WorkRecord& record) {
    return read_scores(record, "record", 1, layout.first_position, layout.of_group(0));
  };
  const std::vector<SequenceScores> scores = read(record_of(layout));
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[1].nll, (std::vector<double>{22, 23, 24, 25, 26, 27, 28}));
  const auto refused = [&](const char* what, const std::function<void(WorkRecord&)>& change) {
    WorkRecord record = record_of(layout);
    change(record);
    EXPECT_THROW(read(record), InputError) << what;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), kInfinity, -1.0, 1e300, 2e6}) {
    for (const std::size_t at : {0, 6, 14, 19, 35, 47}) {
      refused("a value", [&](WorkRecord& r) { r["row1"][at] = value; });
    }
  }
  refused("no yes or no", [](WorkRecord& r) { r["row1"][18] = 2; });
  refused("half a yes", [](WorkRecord& r) { r["row1"][41] = 0.5; });
  refused("values of one token more", [](WorkRecord& r) { r["row1"].resize(52, 1.0); });
  refused("values of one token less", [](WorkRecord& r) { r["row1"].resize(44); });
  refused("no values", [](WorkRecord& r) { r["row1"].clear(); });
  refused("a row that is missing", [](WorkRecord& r) { r.erase("row1"); });
}

}  // namespace
}  // namespace oscar
