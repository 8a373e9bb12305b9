#include "methods/tile_codes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace oscar {
namespace {

TEST(LloydMax, CentroidsAreThePublishedOnes) {
  const std::vector<std::vector<double>> positive = {{.7979},
                                                     {.4528, 1.5104},
                                                     {.2451, .7560, 1.3439, 2.1519},
                                                     {.1284, .3880, .6568, .9423, 1.2562, 1.6180, 2.0690, 2.7326}};
  for (std::size_t b = 1; b <= positive.size(); ++b) {
    const std::vector<double>& c = lloyd_max_centroids(static_cast<int>(b));
    ASSERT_EQ(c.size(), std::size_t{1} << b);
    for (std::size_t i = 0; i < positive[b - 1].size(); ++i) {
      EXPECT_NEAR(c[c.size() / 2 + i], positive[b - 1][i], 6e-5);
      EXPECT_DOUBLE_EQ(c[c.size() / 2 - 1 - i], -c[c.size() / 2 + i]);
    }
  }
}

TEST(LloydMax, ARowOfCentroidsIsAFixedPointUpToItsNorm) {
  // Two coordinates of +-1.5104 and two of +-0.4528 have norm^2 = 2 (1.5104^2 + 0.4528^2) = 4.97, not 4: the row is
  // scaled to norm sqrt(4) first, codes stay, and the decoded row is the centroids times norm / sqrt(4).
  const std::vector<double>& c = lloyd_max_centroids(2);
  std::vector<float> x{static_cast<float>(c[0]), static_cast<float>(c[1]), static_cast<float>(c[2]),
                       static_cast<float>(c[3])};
  double norm = 0;
  for (const float v : x) norm += static_cast<double>(v) * v;
  norm = std::sqrt(norm);
  std::vector<float> y = x;
  lloyd_max_code(y.data(), 4, 2);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], c[i] * norm / 2, 2e-3);
}

TEST(LloydMax, ZeroStaysZero) {
  std::vector<float> x(8, 0.0f);
  lloyd_max_code(x.data(), 8, 2);
  for (const float v : x) EXPECT_EQ(v, 0.0f);
}

}  // namespace
}  // namespace oscar
