// Estimates of the KL of width profiles: the formulas of curve_estimate.h on made numbers.
#include "bundle/curve_estimate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "transform/profile_allocation.h"

namespace oscar {
namespace {

constexpr int kDim = 64;

// Analytic costs that fall by e for each bit.
std::vector<double> falling() {
  std::vector<double> analytic;
  for (const Widths& widths : falling_profiles()) analytic.push_back(std::exp(-profile_bits(widths, kDim)));
  return analytic;
}

TEST(CurveEstimate, OneRatioForAllIsKept) {
  const std::vector<double> analytic = falling();
  std::vector<MeasuredKl> measured;
  for (const std::size_t i : {std::size_t{0}, std::size_t{9}, analytic.size() - 1}) {
    measured.push_back({i, 7.0 * analytic[i], 0.5 * analytic[i]});
  }
  const std::vector<double> kl = estimated_kl(analytic, measured, kDim);
  for (std::size_t i = 0; i < kl.size(); ++i) EXPECT_NEAR(kl[i], 7.0 * analytic[i], 1e-12) << i;
}

TEST(CurveEstimate, APointWithoutErrorIsTakenAsItIs) {
  const std::vector<double> analytic = falling();
  const std::vector<double> kl = estimated_kl(analytic, {{0, 5.0, 0.0}, {9, 0.01, 0.0}, {34, 3.0, 0.0}}, kDim);
  EXPECT_NEAR(kl[0], 5.0, 1e-12);
  EXPECT_NEAR(kl[9], 0.01, 1e-14);
  EXPECT_NEAR(kl[34], 3.0, 1e-12);
  EXPECT_NEAR(estimated_kl(analytic, {{4, 2.0, 9.0}}, kDim)[4], 2.0, 1e-12) << "nothing else is known";
}

// Two profiles of equal bits. A relative error equal to `spread` moves a point half the way, in logarithms.
TEST(CurveEstimate, NoiseIsShrunkByWhatTheOthersSay) {
  std::vector<double> analytic(falling_profiles().size(), 1.0);
  std::size_t a = 0, b = 0;
  for (std::size_t i = 0; i < analytic.size(); ++i) {
    if (falling_profiles()[i] == Widths{4, 0, 0, 0}) a = i;
    if (falling_profiles()[i] == Widths{2, 1, 0, 0}) b = i;
  }
  const EstimateOptions options{0.3, 0.6};
  const std::vector<double> kl = estimated_kl(analytic, {{a, 4.0, 1.2}, {b, 1.0, 0.0}}, kDim, options);
  EXPECT_NEAR(kl[a], 2.0, 1e-12);
  EXPECT_NEAR(kl[b], 1.0, 1e-12);
}

TEST(CurveEstimate, ZerosAndLonePointsAreFinite) {
  const std::vector<double> zeros(falling_profiles().size(), 0.0);
  for (const double kl : estimated_kl(zeros, {{0, 0.0, 0.0}}, kDim)) EXPECT_TRUE(std::isfinite(kl) && kl >= 0.0);
  const std::vector<double> narrow = estimated_kl(falling(), {{34, 1e-3, 1e-4}}, kDim, {0.3, 0.01});
  for (const double kl : narrow) EXPECT_TRUE(std::isfinite(kl) && kl > 0.0);
}

}  // namespace
}  // namespace oscar
