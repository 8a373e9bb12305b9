#include "layout/cache_windows.h"

#include <gtest/gtest.h>

namespace oscar {
namespace {

TEST(CacheWindows, PublishedRule) {
  const CacheWindows windows{64, 256, 1};
  EXPECT_EQ(windows.quantised_end(1), 64);  // nothing is quantised: the range [64, 64) is empty
  EXPECT_EQ(windows.quantised_end(320), 64);
  EXPECT_EQ(windows.quantised_end(321), 65);
  // The query at position i sees quantised keys sink <= j <= i - recent.
  for (std::int64_t i = 320; i < 1000; ++i) EXPECT_EQ(windows.quantised_end(i + 1) - 1, i - 256);
}

TEST(CacheWindows, TokensAreQuantisedOnceInWholeGroups) {
  for (const CacheWindows& windows : {CacheWindows{64, 256, 1}, {0, 16, 8}, {4, 0, 1}, {0, 0, 16}, {128, 3, 5}}) {
    std::int64_t last = windows.sink;
    for (std::int64_t n = 0; n < 600; ++n) {
      const std::int64_t end = windows.quantised_end(n);
      EXPECT_GE(end, last);  // never back to BF16
      EXPECT_EQ((end - windows.sink) % windows.flush, 0);
      EXPECT_LE(end, std::max(windows.sink, n));
      if (n > windows.sink) {  // at least `recent` BF16 tokens at the end, less than a group more
        EXPECT_GE(n - end, std::min(windows.recent, n - windows.sink));
        EXPECT_LE(n - end, windows.recent + windows.flush - 1);
      }
      last = end;
    }
  }
}

}  // namespace
}  // namespace oscar
