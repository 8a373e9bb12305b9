#include "methods/group_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace oscar {
namespace {

using group_codes::float8_e4m3;

TEST(GroupCodes, ValuesOnTheGridStay) {
  std::vector<float> x{-1.0f, 0.0f, 1.0f, 2.0f};
  group_codes::uniform(x.data(), 4, 2);
  EXPECT_EQ(x, (std::vector<float>{-1.0f, 0.0f, 1.0f, 2.0f}));
}

TEST(GroupCodes, ConstantAndZeroGroups) {
  std::vector<float> x(6, 0.25f);
  group_codes::uniform(x.data(), 6, 2);
  EXPECT_EQ(x, std::vector<float>(6, 0.25f));
  std::fill(x.begin(), x.end(), 0.0f);
  group_codes::symmetric4(x.data(), 6);
  for (const float v : x) EXPECT_NEAR(v, 0.0f, 1e-3f);
}

TEST(GroupCodes, ParametersBeyondHalfPrecisionSaturate) {
  std::vector<float> x{-1e6f, 1e6f};
  group_codes::uniform(x.data(), 2, 2);
  for (const float v : x) EXPECT_TRUE(std::isfinite(v));
}

TEST(GroupCodes, Symmetric4MapsItsExtremeToMinusEight) {
  std::vector<float> x{8.0f, 1.0f, -7.0f, 0.4f};
  group_codes::symmetric4(x.data(), 4);  // d = -1: codes 0, 7, 15, 8
  EXPECT_EQ(x, (std::vector<float>{8.0f, 1.0f, -7.0f, 0.0f}));
}

TEST(GroupCodes, Float8) {
  EXPECT_EQ(float8_e4m3(0.0f), 0.0f);
  EXPECT_EQ(float8_e4m3(1.0f), 1.0f);
  EXPECT_EQ(float8_e4m3(1.0625f), 1.0f);  // a tie between 1 and 1.125: to even
  EXPECT_EQ(float8_e4m3(1.1875f), 1.25f);
  EXPECT_EQ(float8_e4m3(-3.3f), -3.25f);
  EXPECT_EQ(float8_e4m3(447.0f), 448.0f);
  EXPECT_EQ(float8_e4m3(1e9f), 448.0f);
  EXPECT_EQ(float8_e4m3(0x1p-9f), 0x1p-9f);  // smallest subnormal
  EXPECT_EQ(float8_e4m3(0x1p-11f), 0.0f);
  EXPECT_EQ(float8_e4m3(15.6f), 16.0f);  // rounds up into the next binade
}

}  // namespace
}  // namespace oscar
