#include "layout/cache_windows.h"

#include <gtest/gtest.h>

namespace oscar {
namespace {

TEST(CacheWindows, PublishedRule) {
  const CacheWindows windows{64, 256, 1};
  EXPECT_EQ(windows.quantized_end(1), 64);  // nothing is quantized: the range [64, 64) is empty
  EXPECT_EQ(windows.quantized_end(320), 64);
  EXPECT_EQ(windows.quantized_end(321), 65);
  // The query at position i sees quantized keys sink <= j <= i - recent.
  for (std::int64_t i = 320; i < 1000; ++i) EXPECT_EQ(windows.quantized_end(i + 1) - 1, i - 256);
}

TEST(CacheWindows, TokensAreQuantizedOnceInWholeGroups) {
  for (const CacheWindows& windows : {CacheWindows{64, 256, 1}, {0, 16, 8}, {4, 0, 1}, {0, 0, 16}, {128, 3, 5}}) {
    std::int64_t last = windows.sink;
    for (std::int64_t n = 0; n < 600; ++n) {
      const std::int64_t end = windows.quantized_end(n);
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

TEST(CacheWindows, HoldASpanWhoseQueriesMeetNoQuantizedKey) {
  EXPECT_TRUE((CacheWindows{64, 256, 1}.hold(128)));  // gpt-oss
  EXPECT_TRUE((CacheWindows{64, 256, 1}.hold(256)));
  EXPECT_FALSE((CacheWindows{64, 256, 1}.hold(257)));
  EXPECT_FALSE((CacheWindows{64, 256, 1}.hold(0)));
  for (const CacheWindows& windows : {CacheWindows{0, 5, 1}, {4, 5, 1}, {9, 1, 1}, {3, 8, 1}}) {
    for (std::int64_t span = 1; span < 14; ++span) {
      bool slides = false, chunks = false;  // whether some query of a long sequence sees a quantized key
      for (std::int64_t i = 0; i < 80; ++i) {
        for (std::int64_t j = windows.sink; j < windows.quantized_end(i + 1); ++j) {
          slides = slides || i - j < span;
          chunks = chunks || i / span == j / span;
        }
      }
      EXPECT_EQ(windows.hold(span), !slides) << windows.sink << " " << windows.recent << " " << span;
      EXPECT_EQ(windows.hold(span), !chunks) << windows.sink << " " << windows.recent << " " << span;
    }
  }
}

}  // namespace
}  // namespace oscar
