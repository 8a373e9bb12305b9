// Bits per element against the figures the papers and projects give for heads of 128 channels.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "registry/registry.h"

namespace oscar {
namespace {

double mean_bits(const char* id, int d = 128) {
  const MethodSpec* m = find_method_spec(id);
  return 0.5 * (bits_per_element(m->key, d) + bits_per_element(m->value, d));
}

TEST(Sizes, AreThePublishedOnes) {
  EXPECT_DOUBLE_EQ(mean_bits("fp8"), 8.0);
  EXPECT_DOUBLE_EQ(mean_bits("q4_0"), 4.5);
  EXPECT_DOUBLE_EQ(mean_bits("kivi2"), 3.0);
  EXPECT_DOUBLE_EQ(mean_bits("kivi2-g128"), 2.25);
  EXPECT_DOUBLE_EQ(mean_bits("turboquant2.5"), 2.5);
  EXPECT_DOUBLE_EQ(mean_bits("turboquant4"), 4.0 + 0.5 * (16.0 + 32.0) / 128);
  EXPECT_DOUBLE_EQ(mean_bits("turboquant3"), 3.0 + 0.5 * (16.0 + 32.0) / 128);
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
  EXPECT_THROW(require_fit(*find_method_spec("q4_0"), 80), UsageError);
  EXPECT_EQ(find_method_spec("kivi3"), nullptr);
}

}  // namespace
}  // namespace oscar
