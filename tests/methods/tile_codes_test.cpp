#include "methods/tile_codes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "methods/gaussian_rows.h"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 128, kDim = 128;

SideCode side_of(const char* id, bool key) {
  const MethodSpec* m = find_method_spec(id);
  return key ? m->key : m->value;
}

TEST(TileCodes, PerChannelGroupsRunOverTokens) {
  // Each channel is constant over tokens: a per-channel code is exact, a per-token code is not.
  std::vector<float> x(kTokens * kDim);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    for (std::int64_t c = 0; c < kDim; ++c) x[static_cast<std::size_t>(t * kDim + c)] = static_cast<float>(c % 32);
  }
  std::vector<float> keys = x, values = x;
  code_tile(side_of("kivi2", true), keys.data(), kTokens, kDim, kDim);
  EXPECT_EQ(keys, x);
  code_tile(side_of("kivi2", false), values.data(), kTokens, kDim, kDim);
  EXPECT_GT(figures(x, values).relative_mse, 1e-3);
}

TEST(TileCodes, StrideLeavesOtherHeadsAlone) {
  std::vector<float> x = gaussian(32 * 2 * kDim, 3);
  std::vector<float> y = x;
  code_tile(side_of("kivi2", true), y.data(), 32, kDim, 2 * kDim);
  for (std::int64_t t = 0; t < 32; ++t) {
    const auto at = [&](std::int64_t c) { return static_cast<std::size_t>(t * 2 * kDim + c); };
    EXPECT_TRUE(std::equal(x.begin() + static_cast<std::int64_t>(at(kDim)),
                           x.begin() + static_cast<std::int64_t>(at(2 * kDim)),
                           y.begin() + static_cast<std::int64_t>(at(kDim))));
  }
}

}  // namespace
}  // namespace oscar
