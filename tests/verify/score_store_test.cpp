#include "verify/score_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

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

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// 40 rows of 131,072 tokens are 131 MB of scores; one row is 3.
TEST(ScoreStore, MemoryDoesNotGrowWithTheText) {
  ScoreStore store;
  const std::vector<std::vector<SequenceScores>> group(40, {scores_of(2048, 0)});
  store.add_group(group, {});
  const std::int64_t before = resident_bytes();
  for (int g = 1; g < 64; ++g) store.add_group(group, {});
  EXPECT_EQ(store.row(39).size(), 64u);
  EXPECT_LT(resident_bytes() - before, std::int64_t{16} << 20);
}

TEST(ScoreStore, NamesAFolderThatCannotBeWritten) {
  const char* old = std::getenv("TMPDIR");
  const std::string kept = old == nullptr ? "" : old;
  ::setenv("TMPDIR", "/proc", 1);
  ScoreStore store;
  try {
    store.add_group({{scores_of(3, 0)}}, {});
    ADD_FAILURE();
  } catch (const EnvironmentError& e) {
    EXPECT_NE(std::string(e.what()).find("/proc"), std::string::npos) << e.what();
  }
  kept.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
}

}  // namespace
}  // namespace oscar
