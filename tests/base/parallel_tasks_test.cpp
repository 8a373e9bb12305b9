#include "base/parallel.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/four_threads.h"

namespace oscar {
namespace {

class ParallelTasks : public FourThreads {};

TEST_F(ParallelTasks, EachRunsOnceAndAtenHasOneThreadMeanwhile) {
  std::vector<std::atomic<int>> runs(1000);
  std::atomic<int> most{0};
  parallel_tasks(1000, [&](std::int64_t n) {
    ++runs[static_cast<std::size_t>(n)];
    if (at::get_num_threads() > 1) most = at::get_num_threads();
  });
  for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
  EXPECT_EQ(most, 0);
  EXPECT_EQ(at::get_num_threads(), 4);
}

TEST_F(ParallelTasks, NothingToDo) {
  parallel_tasks(0, [](std::int64_t) { FAIL(); });
  EXPECT_EQ(at::get_num_threads(), 4);
}

TEST_F(ParallelTasks, TasksWithinTasksRunInOrderAndLeaveTheSettingAlone) {
  std::atomic<int> wrong{0};
  parallel_tasks(8, [&](std::int64_t) {
    std::vector<std::int64_t> order;
    parallel_tasks(5, [&](std::int64_t n) { order.push_back(n); });
    if (order != std::vector<std::int64_t>{0, 1, 2, 3, 4} || at::get_num_threads() != 1) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(ParallelTasks, TheFirstErrorIsThrownAndThreadsAreGivenBack) {
  for (int round = 0; round < 20; ++round) {
    std::string found;
    try {
      parallel_tasks(64, [](std::int64_t n) {
        if (n >= 7) throw std::runtime_error("task " + std::to_string(n));
      });
    } catch (const std::runtime_error& e) {
      found = e.what();
    }
    EXPECT_EQ(found, "task 7");
    EXPECT_EQ(at::get_num_threads(), 4);
  }
}

TEST_F(ParallelTasks, KeepsInferenceMode) {
  const c10::InferenceMode mode;
  std::atomic<int> without{0};
  parallel_tasks(32, [&](std::int64_t) { without += c10::InferenceMode::is_enabled() ? 0 : 1; });
  EXPECT_EQ(without, 0);
}

}  // namespace
}  // namespace oscar
