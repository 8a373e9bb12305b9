#include "model/background_jobs.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <vector>

namespace oscar {
namespace {

TEST(BackgroundJobs, RunInOrderBesideTheirCaller) {
  std::promise<void> go;
  std::vector<int> done;
  BackgroundJobs jobs(at::kCPU, 100);
  jobs.add(1, [&] { go.get_future().wait(); });
  for (int i = 0; i < 5; ++i) jobs.add(1, [&done, i] { done.push_back(i); });
  EXPECT_TRUE(done.empty());
  go.set_value();
  jobs.wait();
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(BackgroundJobs, WaitWhereTooMuchIsHeld) {
  std::atomic<int> waiting{0}, most{0};
  BackgroundJobs jobs(at::kCPU, 30);
  for (int i = 0; i < 50; ++i) {
    jobs.add(10, [&] { --waiting; });
    most = std::max<int>(most, ++waiting);
  }
  jobs.add(1000, [] {});  // more than may wait: alone
  jobs.wait();
  EXPECT_LE(most, 4) << "three that are held, and one that is done but not let go";
}

TEST(BackgroundJobs, AnErrorReachesTheCallerAndEndsTheRest) {
  std::atomic<int> later{0};
  BackgroundJobs jobs(at::kCPU, 100);
  jobs.add(1, [] { throw std::runtime_error("NaN in layer 3"); });
  try {
    jobs.wait();
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "NaN in layer 3");
  }
  EXPECT_THROW(jobs.add(1, [&] { ++later; }), std::runtime_error);
  EXPECT_EQ(later, 0);
}

TEST(BackgroundJobs, WhatHasNotBegunIsLeftOutAtTheEnd) {
  std::promise<void> begun;
  std::atomic<int> later{0};
  {
    BackgroundJobs jobs(at::kCPU, 1000);
    std::promise<void> go;
    jobs.add(1, [&begun, gone = go.get_future().share()] { begun.set_value(), gone.wait(); });
    begun.get_future().wait();
    for (int i = 0; i < 20; ++i) jobs.add(1, [&] { ++later; });
    go.set_value();
  }
  EXPECT_LE(later, 20);
}

// Tensors made on the stream of the caller are there when a job reads them, and are used again only behind it.
TEST(BackgroundJobs, OrderWorkOfStreams) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  BackgroundJobs jobs(at::Device(at::kCUDA, 0), std::uint64_t{1} << 30);
  std::atomic<int> wrong{0};
  for (int i = 1; i <= 50; ++i) {
    at::Tensor x = at::ones({1 << 20}, at::TensorOptions(at::kFloat).device(at::kCUDA));
    for (int k = 0; k < 20; ++k) x = x + 1.0;
    x = x * i;
    jobs.add(x.nbytes(), [x, i, &wrong] { wrong += x.sum().item<double>() == 21.0 * i * (1 << 20) ? 0 : 1; });
  }
  jobs.wait();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace oscar
