// Bits per element against the figures the papers and projects give for heads of 128 channels.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "registry/registry.h"

namespace oscar {
namespace {

double mean_bits(const char* id, int heads = 8, int d = 128) {
  const MethodSpec* m = find_method_spec(id);
  return 0.5 * (bits_per_element(m->key, heads, d) + bits_per_element(m->value, heads, d));
}

TEST(Sizes, AreThePublishedOnes) {
  EXPECT_DOUBLE_EQ(mean_bits("fp8"), 8.0);
  EXPECT_DOUBLE_EQ(mean_bits("q8_0"), 8.5);
  EXPECT_DOUBLE_EQ(mean_bits("q4_0"), 4.5);
  EXPECT_DOUBLE_EQ(mean_bits("saw4"), 4.25);
  EXPECT_DOUBLE_EQ(mean_bits("quarot2"), 2.25);
  EXPECT_DOUBLE_EQ(mean_bits("kivi2"), 3.0);
  EXPECT_DOUBLE_EQ(mean_bits("kivi2-g128"), 2.25);
  EXPECT_DOUBLE_EQ(mean_bits("oscar-tns"), 3.0 + 0.5 * 32.0 / (8 * 128));
  EXPECT_DOUBLE_EQ(mean_bits("oscar-tns-g128"), 2.25 + 0.5 * 32.0 / (8 * 128));
  EXPECT_DOUBLE_EQ(mean_bits("kvarn2"), 2.375);
  EXPECT_DOUBLE_EQ(mean_bits("rotatekv2"), 2.25);
  // 16 for the scale of a row, 4 and 32 / 64 for its norm; 4 and 32 / 32 for a channel's mean, for 64 tokens.
  EXPECT_NEAR(mean_bits("nsn"), 1.238, 0.0005);
  EXPECT_DOUBLE_EQ(mean_bits("nsn2"), 1 + mean_bits("nsn"));
  EXPECT_DOUBLE_EQ(mean_bits("nsn"), 1 + (16 + 4.5) / 128 + 5.0 / 64);
  EXPECT_DOUBLE_EQ(mean_bits("turboquant2"), 2.125);
  EXPECT_DOUBLE_EQ(mean_bits("turboquant2.5"), 2.5);
  EXPECT_DOUBLE_EQ(mean_bits("turboquant3.5"), 3.5);
  EXPECT_NEAR(mean_bits("kitty2"), 2.38, 0.005);
  // Slots of vLLM, bytes of K and V of one token and head: 196, 134, 118 and 102.
  EXPECT_DOUBLE_EQ(mean_bits("turboquant_k8v4") * 32, 196);
  EXPECT_DOUBLE_EQ(mean_bits("turboquant_4bit_nc") * 32, 134);
  EXPECT_DOUBLE_EQ(mean_bits("turboquant_k3v4_nc") * 32, 118);
  EXPECT_DOUBLE_EQ(mean_bits("turboquant_3bit_nc") * 32, 102);
}

TEST(Sizes, WindowsCount) {
  EXPECT_DOUBLE_EQ(bits_with_windows(2.25, {64, 256, 1}, 131072), 2.25 + 13.75 * 320 / 131072);
  EXPECT_DOUBLE_EQ(bits_with_windows(2.25, {64, 256, 1}, 100), 16.0);
  EXPECT_DOUBLE_EQ(bits_with_windows(3.0, {0, 1, 129}, 1000), 3.0 + 13.0 * 65 / 1000);  // half a block on average
}

TEST(Sizes, BlocksHoldWholeGroups) {
  for (const MethodRow& row : method_registry()) {
    if (!row.description) continue;
    for (const SideCode& s : {row.description->key, row.description->value}) {
      EXPECT_EQ(s.windows.flush % tile_tokens(s), 0) << row.id;
    }
  }
}

TEST(Sizes, MethodsThatDoNotFitAreRefused) {
  EXPECT_NO_THROW(require_fit(*find_method_spec("rotatekv2"), 2, 128));
  EXPECT_NO_THROW(require_fit(*find_method_spec("rotatekv2"), 8, 128));
  EXPECT_THROW(require_fit(*find_method_spec("rotatekv2"), 6, 128), UsageError);
  EXPECT_THROW(require_fit(*find_method_spec("q4_0"), 8, 80), UsageError);
  EXPECT_THROW(require_fit(*find_method_spec("saw4"), 8, 80), UsageError);
  EXPECT_THROW(require_fit(*find_method_spec("nsn"), 8, 80), UsageError);
  EXPECT_NO_THROW(require_fit(*find_method_spec("nsn"), 8, 96));
  EXPECT_EQ(find_method_spec("kivi3"), nullptr);
}

}  // namespace
}  // namespace oscar
