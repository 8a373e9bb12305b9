#include "base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/four_threads.h"

namespace oscar {
namespace {

class ParallelRanges : public FourThreads {};

// What a plain loop would not do: four parts wait for one another, for ten seconds at most.
#ifndef __clang__  // compiled without OpenMP
TEST_F(ParallelRanges, PartsRunAtTheSameTime) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::atomic<int> begun{0}, met{0};
  parallel_ranges(4, 1, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_EQ(end, begin + 1);
    for (++begun; begun < 4 && std::chrono::steady_clock::now() < deadline;) std::this_thread::yield();
    met += begun == 4 ? 1 : 0;
  });
  EXPECT_EQ(met, 4);
}
#endif

TEST_F(ParallelRanges, EachIndexIsCoveredOnce) {
  for (const std::int64_t grain : {1, 3, 64, 5000}) {
    std::vector<std::atomic<int>> visits(1000);
    std::atomic<int> parts{0};
    parallel_ranges(1000, grain, [&](std::int64_t begin, std::int64_t end) {
      ++parts;
      for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
    });
    for (const std::atomic<int>& count : visits) EXPECT_EQ(count, 1);
    EXPECT_LE(parts, grain == 5000 ? 1 : 4);
  }
  parallel_ranges(0, 1, [](std::int64_t, std::int64_t) { FAIL(); });
}

TEST_F(ParallelRanges, WithinATaskTheyRunOnItsThread) {
  std::atomic<int> parts{0};
  parallel_tasks(4, [&](std::int64_t) { parallel_ranges(100, 1, [&](std::int64_t, std::int64_t) { ++parts; }); });
  EXPECT_EQ(parts, 4);
}

TEST_F(ParallelRanges, TheErrorOfTheLowestRangeIsThrown) {
  for (int round = 0; round < 20; ++round) {
    std::string found;
    try {
      parallel_ranges(100, 1,
                      [](std::int64_t begin, std::int64_t) { throw std::runtime_error(std::to_string(begin)); });
    } catch (const std::runtime_error& e) {
      found = e.what();
    }
    EXPECT_EQ(found, "0");
  }
}

}  // namespace
}  // namespace oscar
