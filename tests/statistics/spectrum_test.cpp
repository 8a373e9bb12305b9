#include "statistics/spectrum.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace oscar {
namespace {

TEST(Spectrum, IdentityIsFlat) {
  const Spectrum s = Spectrum::of(at::eye(32, at::kDouble) * 3);
  EXPECT_NEAR(s.trace, 96, 1e-9);
  EXPECT_NEAR(s.top8, 0.25, 1e-12);
  EXPECT_NEAR(s.participation, 32, 1e-9);
  EXPECT_EQ(spectrum_picture(s, 8, false), "@@@@@@@@");
  EXPECT_EQ(spectrum_picture(s, 4, true), "████");
}

TEST(Spectrum, RankOneIsOneDirection) {
  const at::Tensor x = at::arange(1, 17, at::kDouble);
  const Spectrum s = Spectrum::of(at::outer(x, x));
  EXPECT_NEAR(s.trace, x.dot(x).item<double>(), 1e-6);
  EXPECT_NEAR(s.top8, 1.0, 1e-12);
  EXPECT_NEAR(s.participation, 1.0, 1e-9);
  EXPECT_EQ(spectrum_picture(s, 16, false), "@               ");
}

TEST(Spectrum, KnownEigenvaluesInDescendingOrder) {
  const Spectrum s = Spectrum::of(at::diag(at::tensor({1.0, 1000.0, 1e-6, 10.0}, at::kDouble)));
  ASSERT_EQ(s.eigenvalues.size(), 4u);
  EXPECT_NEAR(s.eigenvalues[0], 1000, 1e-9);
  EXPECT_NEAR(s.eigenvalues[1], 10, 1e-9);
  EXPECT_NEAR(s.eigenvalues[3], 1e-6, 1e-9);
  EXPECT_EQ(spectrum_picture(s, 4, false), "@+= ");  // two decades down: 5.33 of 8; three: 4; nine: blank
}

TEST(Spectrum, ZeroMatrix) {
  const Spectrum s = Spectrum::of(at::zeros({4, 4}, at::kDouble));
  EXPECT_EQ(s.trace, 0.0);
  EXPECT_EQ(s.top8, 0.0);
  EXPECT_EQ(s.participation, 0.0);
  EXPECT_EQ(spectrum_picture(s, 4, false), "    ");
}

}  // namespace
}  // namespace oscar
