#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace oscar {

// Four threads, and the number of before afterwards.
class FourThreads : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(4); }
  void TearDown() override { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

}  // namespace oscar
