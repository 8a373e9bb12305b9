#include "kernels/common/page_layout.h"

#include <gtest/gtest.h>

#include <set>

namespace oscar {
namespace {

TEST(PageLayout, EveryCodeHasItsOwnBits) {
  for (const int n : {4, 8, 16, 20, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512, 1024}) {
    for (const int w : {1, 2, 4}) {
      const PlaneLayout plane{0, n, w, 0, 0};
      std::set<int> keys, values;
      for (int token = 0; token < kPageTokens; ++token) {
        for (int i = 0; i < n; ++i) {
          const int k = plane.key_bit(token, i), v = plane.value_bit(token, i);
          ASSERT_EQ(k % w, 0);
          ASSERT_EQ(v % w, 0);
          ASSERT_TRUE(k >= 0 && k < 8 * plane.bytes()) << n << " " << w;
          ASSERT_TRUE(v >= 0 && v < 8 * plane.bytes()) << n << " " << w;
          keys.insert(k), values.insert(v);
        }
      }
      EXPECT_EQ(keys.size(), static_cast<std::size_t>(kPageTokens * n)) << n << " " << w;
      EXPECT_EQ(values.size(), static_cast<std::size_t>(kPageTokens * n)) << n << " " << w;
    }
  }
}

// A lane walks its words in order and takes field after field: it must meet the operands of m16n8k16 in the order in
// which the steps use them. B of step (tokens 8 a.., channels 16 k..): registers b0, b1 = channels 2t, 2t+1 and 2t+8,
// 2t+9 of token g. A of step (channels 16 k.., tokens 16 a..): a0..a3 = rows g, g+8, g, g+8, tokens 2t, 2t+1 (a0, a1)
// and 2t+8, 2t+9 (a2, a3).
TEST(PageLayout, LanesMeetTensorCoreOperandsInOrder) {
  for (const int d : {64, 128, 256}) {
    const PlaneLayout plane{0, d, 2, 0, 0};
    const int v = plane.vector_words(), strip = 16 * d * 2 / 32 / 32;  // words of a lane for 16 tokens
    EXPECT_EQ(v, d == 64 ? 2 : 4);
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const auto bit_of = [&](int word, int field, int half) {
        return 32 * (word / v * 32 * v + lane * v + word % v) + 16 * half + 2 * field;
      };
      for (int a = 0; a < 4; ++a) {  // strips of 16 tokens
        int at = 0;
        for (int token_half = 0; token_half < 2; ++token_half) {
          for (int k = 0; k < d / 16; ++k) {
            for (int b = 0; b < 2; ++b, ++at) {
              for (int h = 0; h < 2; ++h) {
                ASSERT_EQ(plane.key_bit(16 * a + 8 * token_half + g, 16 * k + 8 * b + 2 * t + h),
                          bit_of(a * strip + at / 8, at % 8, h));
              }
            }
          }
        }
        for (int k = 0; k < d / 16; ++k) {
          for (int r = 0; r < 2; ++r) {
            for (int b = 0; b < 2; ++b) {
              const int field = (2 * k + r) % 8, word = a * strip + 2 * ((2 * k + r) / 8) + b;
              for (int h = 0; h < 2; ++h) {
                ASSERT_EQ(plane.value_bit(16 * a + 8 * b + 2 * t + h, 16 * k + 8 * r + g), bit_of(word, field, h));
              }
            }
          }
        }
      }
    }
  }
}

TEST(PageLayout, TokenHalvesOfAValueChannelShareTheirField) {
  for (const auto& [n, w] : {std::pair{32, 1}, {32, 2}, {32, 4}, {16, 2}, {16, 4}, {64, 1}, {128, 2}}) {
    const PlaneLayout plane{0, n, w, 0, 0};
    for (int token = 0; token < kPageTokens; ++token) {
      for (int i = 0; i < n; ++i) {
        if (token % 16 >= 8) continue;
        ASSERT_EQ(plane.value_bit(token, i) % 32, plane.value_bit(token + 8, i) % 32);
      }
    }
  }
}

TEST(PageLayout, SectionsFollowEachOtherInSixteens) {
  constexpr std::uint8_t widths[4] = {4, 0, 2, 1};
  for (const int d : {64, 96, 128, 256}) {
    for (const SideLayout& key :
         {uniform_side(d, d, false, 0), uniform_side(d, 32, true, 0), band_side(d, widths, 0)}) {
      const SideLayout value = band_side(d, widths, key.end());
      int at = 0;
      for (const SideLayout* side : {&key, &value}) {
        for (int b = 0; b < side->planes; ++b) {
          EXPECT_EQ(side->plane[b].offset, at);
          at += side->plane[b].bytes();
          EXPECT_EQ(at % 16, 0);
        }
        EXPECT_EQ(side->param_offset, at);
        EXPECT_EQ(side->param_byte(0, 0), at);
        EXPECT_EQ(side->param_byte(63, side->quant_groups - 1) + side->param_size(), side->end());
        at = side->end();
        EXPECT_EQ(at % 16, 0);
      }
      EXPECT_EQ((PageLayout{key, value}.bytes()), at);
    }
  }
}

}  // namespace
}  // namespace oscar
