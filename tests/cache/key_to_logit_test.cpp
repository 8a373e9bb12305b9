// docs/key_to_logit.h is what people read first: it must be what the cache does.
#include "docs/key_to_logit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cache/row_loops.h"
#include "cache/row_pages.h"
#include "codec/rows.h"

namespace oscar {
namespace {

constexpr int kDim = 128, kGroup = 64;
constexpr float kClip = 0.96f;

std::vector<float> hadamard() {
  std::vector<float> m(kDim * kDim);
  for (unsigned i = 0; i < kDim; ++i) {
    for (unsigned j = 0; j < kDim; ++j) {
      m[i * kDim + j] = (__builtin_popcount(i & j) % 2 == 0 ? 1.0f : -1.0f) / std::sqrt(static_cast<float>(kDim));
    }
  }
  return m;
}

struct Page {
  RowPages pages;
  std::vector<std::uint8_t> bytes;
};

// The runtime's page with the rotated keys, [kPageTokens, kDim] BF16 bits.
Page coded_page(const std::vector<std::uint16_t>& rotated) {
  const RowCode code = uniform_code(kDim, kGroup);
  const PageLayout layout = page_layout(code, code);
  Page page{RowPages(layout, Side::kKey, {RowCodec{.code = code, .encoder = Encoder::kMinMax, .clip = kClip}}),
            std::vector<std::uint8_t>(static_cast<std::size_t>(layout.bytes()))};
  std::vector<float> rows(rotated.size());
  widen_row(rotated.data(), static_cast<int>(rotated.size()), rows.data());
  page.pages.write(page.bytes.data(), 0, kPageTokens, rows.data());
  return page;
}

TEST(KeyToLogit, IsWhatTheCacheDoes) {
  const std::vector<float> keys = gaussian_rows(1, kPageTokens, kDim), query = gaussian_rows(2, 1, kDim),
                           m = hadamard();
  std::vector<std::uint16_t> rotated(keys.size()), rotated_query(kDim);
  rotate_rows(keys.data(), kPageTokens, kDim, nullptr, m.data(), kDim, rotated.data(), kDim);
  rotate_rows(query.data(), 1, kDim, nullptr, m.data(), kDim, rotated_query.data(), kDim);
  const Page page = coded_page(rotated);
  std::vector<float> q(kDim), dots(kPageTokens), back(keys.size());
  widen_row(rotated_query.data(), kDim, q.data());
  page.pages.dots(page.bytes.data(), 0, kPageTokens, q.data(), 1, dots.data());
  page.pages.read_back(page.bytes.data(), 0, kPageTokens, back.data());
  const float scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  double error = 0.0;
  for (int t = 0; t < kPageTokens; ++t) {
    const key_to_logit::Row key(keys.begin() + t * kDim, keys.begin() + (t + 1) * kDim);
    const auto coded = key_to_logit::pack(key_to_logit::clip(key_to_logit::rotate(key, m), kClip), kGroup);
    const key_to_logit::Row read = key_to_logit::read(coded);
    double exact = 0.0;
    for (std::size_t i = 0; i < kDim; ++i) {
      ASSERT_EQ(read[i], back[static_cast<std::size_t>(t) * kDim + i]) << "token " << t << " channel " << i;
      exact += static_cast<double>(key[i]) * query[i];
    }
    const float logit = key_to_logit::logit(query, m, coded, scale);
    EXPECT_NEAR(logit, dots[static_cast<std::size_t>(t)] * scale, 2e-5f) << "token " << t;
    error += std::pow(logit - exact * scale, 2);
  }
  // Two bits keep the logit: unit normal keys and queries have logits of variance 1.
  EXPECT_LT(std::sqrt(error / kPageTokens), 0.5);
  EXPECT_GT(error, 0.0);
}

}  // namespace
}  // namespace oscar
