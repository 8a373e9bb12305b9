#include "base/parallel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "support/four_threads.h"

namespace oscar {
namespace {

class ThreadCount : public FourThreads {};

// The file of a run may name any number, and starting them all would take every process id of a machine.
TEST_F(ThreadCount, IsBoundedByTheMachineAndTheProcess) {
  const int most = std::max(4, static_cast<int>(std::thread::hardware_concurrency()));
  use_threads(2, kThreadsOfRun);
  EXPECT_EQ(at::get_num_threads(), 2);
  at::set_num_threads(4);
  for (const int wanted : {most + 1, 500, 65536}) {
    use_threads(wanted, kThreadsOfRun);
    EXPECT_EQ(at::get_num_threads(), most);
    at::set_num_threads(4);
  }
  use_threads(0, kThreadsOfRun);
  EXPECT_EQ(at::get_num_threads(), 1);
}

}  // namespace
}  // namespace oscar
