#include "model/device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace oscar {
namespace {

// Without begin_linear_algebra() all threads but the first fail, in a process that has called no factorization before.
TEST(LinearAlgebra, BeginsOnSeveralThreadsAtOnce) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  const at::Device gpu{at::kCUDA, 0};
  const at::Tensor four = at::full({1, 1}, 4.0, at::TensorOptions(gpu).dtype(at::kDouble));
  std::atomic<int> waiting{8}, right{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (--waiting; waiting > 0;) std::this_thread::yield();
      begin_linear_algebra(gpu);
      right += std::get<0>(at::linalg_cholesky_ex(four)).item<double>() == 2.0 ? 1 : 0;
    });
  }
  threads.clear();
  EXPECT_EQ(right, 8);
}

}  // namespace
}  // namespace oscar
