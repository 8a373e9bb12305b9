// OSCAR's code with one bit.
#include "codec/two_levels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/errors.h"

namespace oscar {
namespace {

std::vector<float> coded(std::vector<float> x, std::int64_t group, float clip) {
  two_level_rows(x.data(), 1, static_cast<std::int64_t>(x.size()), group, clip);
  return x;
}

TEST(TwoLevels, LieAtTheEndsOfTheRange) {
  EXPECT_EQ(coded({-1.0f, 0.4f, 0.6f, 3.0f}, 4, 0.0f), (std::vector<float>{-1.0f, -1.0f, -1.0f, 3.0f}));
  EXPECT_EQ(coded({-1.0f, 1.5f, 0.6f, 3.0f}, 4, 0.0f), (std::vector<float>{-1.0f, 3.0f, -1.0f, 3.0f}));
  // Each group has a range of its own.
  EXPECT_EQ(coded({-1.0f, 1.0f, 4.0f, 8.0f}, 2, 0.0f), (std::vector<float>{-1.0f, 1.0f, 4.0f, 8.0f}));
}

TEST(TwoLevels, TheClipMovesTheEnds) {
  // Index 2 of the magnitudes .5, 1, 2, 8: threshold 2.
  EXPECT_EQ(coded({0.5f, -8.0f, 1.0f, 2.0f}, 4, 0.5f), (std::vector<float>{2.0f, -2.0f, 2.0f, 2.0f}));
}

TEST(TwoLevels, AGroupWithoutARangeIsItsMiddle) {
  EXPECT_EQ(coded({2.5f, 2.5f}, 2, 0.0f), (std::vector<float>{2.5f, 2.5f}));
  EXPECT_EQ(coded({0.0f, 0.0f}, 2, 0.0f), (std::vector<float>{0.0f, 0.0f}));
}

TEST(TwoLevels, WhatIsNotFiniteIsRefused) {
  EXPECT_THROW(coded({1.0f, std::numeric_limits<float>::quiet_NaN()}, 2, 0.0f), NumericalError);
  EXPECT_THROW(coded({1.0f, INFINITY}, 2, 0.9f), NumericalError);
}

}  // namespace
}  // namespace oscar
