#include "layout/float16.h"
#include "support/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace oscar {
namespace {

TEST(Float16, EveryFinitePatternSurvives) {
  for (std::uint32_t b = 0; b < 0x10000u; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    if (((b >> 10) & 0x1f) == 31 && (b & 0x3ff) != 0) continue;  // NaN
    ASSERT_EQ(float16_bits(float16_value(bits)), bits);
  }
}

TEST(Float16, RoundsToNearestEvenBetweenNeighbors) {
  for (std::uint16_t b = 0; b < 0x7bff; ++b) {  // positive finite neighbors
    const float low = float16_value(b), high = float16_value(static_cast<std::uint16_t>(b + 1));
    const float middle = low + (high - low) / 2;  // exact: 12 significant bits
    ASSERT_EQ(float16_bits(middle), b % 2 == 0 ? b : b + 1);
    ASSERT_EQ(float16_bits(std::nextafter(middle, 0.0f)), b);
    ASSERT_EQ(float16_bits(std::nextafter(middle, high)), b + 1);
    ASSERT_EQ(float16_bits(-middle), (b % 2 == 0 ? b : b + 1) | 0x8000);
  }
}

TEST(Float16, Limits) {
  EXPECT_EQ(float16_bits(65519.99f), 0x7bff);
  EXPECT_EQ(float16_bits(65520.0f), 0x7c00);  // ties to the even 2^16, which is infinity
  EXPECT_EQ(float16_bits(1e30f), 0x7c00);
  EXPECT_EQ(float16_bits(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(float16_bits(-0.0f), 0x8000);
  EXPECT_EQ(float16_bits(0x1p-25f), 0);
  EXPECT_EQ(float16_bits(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_TRUE(std::isnan(round_to_float16(std::nanf(""))));
}

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(round_to_bfloat16(1.0f), 1.0f);
  EXPECT_EQ(round_to_bfloat16(1.0f + 0x1p-8f), 1.0f);                      // tie to even
  EXPECT_EQ(round_to_bfloat16(1.0f + 0x1p-7f + 0x1p-8f), 1.0f + 0x1p-6f);  // tie to even
  EXPECT_EQ(round_to_bfloat16(1.0f + 0x1p-8f + 0x1p-20f), 1.0f + 0x1p-7f);
  EXPECT_EQ(round_to_bfloat16(3.4e38f), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(round_to_bfloat16(std::bit_cast<float>(0x7f800001u))));
}

}  // namespace
}  // namespace oscar
