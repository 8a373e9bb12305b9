// Published-by-measurement anchors on Gaussian rows: every code must land on its figures within sampling error.
#include <gtest/gtest.h>

#include <functional>

#include "methods/gaussian_rows.h"
#include "methods/group_codes.h"
#include "methods/tile_codes.h"

namespace oscar {
namespace {

struct Anchor {
  const char* name;
  std::int64_t group;
  std::function<void(float*, std::int64_t)> code;
  double relative_mse, cosine, gain;
};

class GaussianAnchor : public testing::TestWithParam<Anchor> {};

TEST_P(GaussianAnchor, IsMet) {
  const Anchor& a = GetParam();
  constexpr std::int64_t kSamples = 1 << 19;
  const std::vector<float> x = gaussian(kSamples, 7);
  std::vector<float> y = x;
  for (std::int64_t i = 0; i < kSamples; i += a.group) a.code(y.data() + i, a.group);
  const CodeFigures f = figures(x, y);
  EXPECT_NEAR(f.relative_mse, a.relative_mse, 0.0015 + 0.01 * a.relative_mse) << a.name;
  EXPECT_NEAR(f.cosine, a.cosine, 0.0015) << a.name;
  EXPECT_NEAR(f.gain, a.gain, 0.006) << a.name;
}

void minmax2(float* x, std::int64_t n) { group_codes::uniform(x, n, 2); }
void lloyd2(float* x, std::int64_t n) { lloyd_max_code(x, n, 2); }

INSTANTIATE_TEST_SUITE_P(
    Codes, GaussianAnchor,
    testing::Values(
        Anchor{"min/max 2, 32", 32, minmax2, .154, .933, 1.015},
        Anchor{"min/max 2, 64", 64, minmax2, .203, .914, 1.013},
        Anchor{"min/max 2, 128", 128, minmax2, .251, .896, 1.010},
        Anchor{"min/max 3, 128", 128, [](float* x, std::int64_t n) { group_codes::uniform(x, n, 3); }, .0457, .978,
               1.00},
        Anchor{"min/max 4, 128", 128, [](float* x, std::int64_t n) { group_codes::uniform(x, n, 4); }, .0100, .995,
               1.00},
        Anchor{"Lloyd-Max 2, 128", 128, lloyd2, .116, .9402, .886},
        Anchor{"Lloyd-Max 3, 128", 128, [](float* x, std::int64_t n) { lloyd_max_code(x, n, 3); }, .0340, .983, .968},
        Anchor{"Lloyd-Max 4, 128", 128, [](float* x, std::int64_t n) { lloyd_max_code(x, n, 4); }, .0093, .995, .991}),
    [](const auto& info) { return "anchor_" + std::to_string(info.index); });

}  // namespace
}  // namespace oscar
