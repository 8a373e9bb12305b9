#include "cache/row_pages.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codec/rows.h"

namespace oscar {
namespace {

std::vector<RowCode> codes_to_try() {
  return {uniform_code(128),
          uniform_code(64),
          uniform_code(80, 16),
          uniform_code(96, 32, ParamType::kBFloat16),
          uniform_code(256, 64),
          uniform_code(20),
          band_code(128, {4, 2, 1, 1}),
          band_code(64, {4, 2, 0, 1}),
          band_code(64, {1, 1, 1, 1}),
          band_code(96, {0, 1, 2, 4}),
          band_code(256, {4, 4, 0, 0})};
}

// Rows written in any order, over whatever the page held before, read back as they were, and nothing beside the page
// is touched.
TEST(RowPages, RowsSurviveInAnyOrder) {
  for (const RowCode& key : codes_to_try()) {
    for (const RowCode& value : codes_to_try()) {
      if (key.head_dim != value.head_dim) continue;
      const PageLayout layout = page_layout(key, value);
      std::vector<std::uint8_t> page(static_cast<std::size_t>(layout.bytes()) + 64, 0xa5);
      const int d = key.head_dim;
      for (const Side side : {Side::kKey, Side::kValue}) {
        const RowCode& code = side == Side::kKey ? key : value;
        const RowPages pages(layout, side);
        const RowCodec codec{.code = code, .side = side, .sigma = {1.5f, 1.0f, 0.5f, 0.25f}};
        const std::vector<float> rows = gaussian_rows(d + static_cast<int>(side), kPageTokens, d);
        std::vector<std::uint8_t> codes(rows.size()),
            params(static_cast<std::size_t>(kPageTokens * code.param_bytes()));
        encode_rows(codec, rows.data(), kPageTokens, 0, codes.data(), params.data());
        for (int i = 0; i < kPageTokens; ++i) {
          const int t = i * 37 % kPageTokens;
          pages.put(page.data(), t, codes.data() + t * d, params.data() + t * code.param_bytes());
        }
        std::vector<std::uint8_t> one(static_cast<std::size_t>(d)), bytes(static_cast<std::size_t>(code.param_bytes()));
        for (int t = 0; t < kPageTokens; ++t) {
          pages.get(page.data(), t, one.data(), bytes.data());
          ASSERT_TRUE(std::equal(one.begin(), one.end(), codes.begin() + t * d));
          ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), params.begin() + t * code.param_bytes()));
        }
        // scale (level - zero) is exactly what the codec decodes.
        std::vector<float> levels(rows.size()), scale(kPageTokens * 64), zero(kPageTokens * 64), back(rows.size());
        decode_rows(codec, codes.data(), params.data(), kPageTokens, back.data(), 0);
        pages.read_levels(page.data(), kPageTokens, codec.sigma.data(), levels.data(), scale.data(), zero.data());
        const std::vector<ScaleRun> runs = scale_runs(side == Side::kKey ? layout.key : layout.value);
        for (std::size_t g = 0; g < runs.size(); ++g) {
          const auto [first, channels, plane] = runs[g];
          for (int t = 0; t < kPageTokens; ++t) {
            const std::size_t at = g * kPageTokens + static_cast<std::size_t>(t);
            for (int i = first; i < first + channels; ++i) {
              const auto index = static_cast<std::size_t>(t * d + i);
              ASSERT_EQ((levels[index] - zero[at]) * scale[at], back[index]);
            }
          }
        }
      }
      for (std::size_t i = static_cast<std::size_t>(layout.bytes()); i < page.size(); ++i) ASSERT_EQ(page[i], 0xa5);
    }
  }
}

TEST(RowPages, BytesOfAPageAreBytesOfTheCode) {
  for (const RowCode& code : codes_to_try()) {
    EXPECT_EQ(page_layout(code, code).bytes(), 2 * kPageTokens * (code.code_bytes() + code.param_bytes()));
  }
}

}  // namespace
}  // namespace oscar
