#include "fit/metric_fit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "fit/balance.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

constexpr std::int64_t kDim = 32;

HeadProblem problem_of(Side side) {
  at::manual_seed(3);
  HeadProblem p;
  p.q = at::randn({40, kDim});
  p.k = at::randn({20, kDim});
  p.v = at::randn({20, kDim});
  p.output_metric = at::eye(kDim, at::kDouble);
  use_transform(p, side, identity_side(kDim), 0);
  return p;
}

TEST(TransformCheck, TheIdentityChangesNothing) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const TransformCheck c = check_transform(problem_of(side));
    EXPECT_LT(c.change, 1e-6);
    EXPECT_GT(c.plain, 1e-4);  // BF16 rounds at 2^-9
    EXPECT_NEAR(c.bf16, c.plain, 1e-5);
    EXPECT_TRUE(c.sound());
  }
}

TEST(TransformCheck, BalancedBasesAreSound) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    HeadProblem p = problem_of(side);
    const at::Tensor sizes = at::pow(2.0, at::arange(kDim).to(at::kDouble) / 4.0);
    const Balanced b = balance(at::diag(sizes.square()), at::diag(1.0 / sizes), "head");
    p.k = p.k * sizes.to(at::kFloat);
    p.v = p.v * sizes.to(at::kFloat);
    p.mean = at::ones({kDim});
    p.forward = b.basis.to(at::kFloat).contiguous();
    p.back = (side == Side::kKey ? b.inverse.t() : b.inverse).to(at::kFloat).contiguous();
    const TransformCheck c = check_transform(p);
    EXPECT_LT(c.change, 1e-5);
    EXPECT_LT(c.bf16, 2.0 * c.plain);
    EXPECT_TRUE(c.sound());
  }
}

TEST(TransformCheck, WrongInversesLostDigitsAndNaNAreSeen) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    HeadProblem p = problem_of(side);
    p.back = at::eye(kDim) * 1.001;
    EXPECT_FALSE(check_transform(p).sound());
    EXPECT_NEAR(check_transform(p).change, 1e-3, 1e-4);

    // A shear: channel 0 of the cache is mostly channel 1, and the way back subtracts it. FP32 keeps it, BF16 does not.
    p.forward = at::eye(kDim), p.back = at::eye(kDim);
    p.forward[1][0] = 1000.0f;
    (side == Side::kKey ? p.back[0][1] : p.back[1][0]) = -1000.0f;
    const TransformCheck sheared = check_transform(p);
    EXPECT_LT(sheared.change, 1e-3);
    EXPECT_GT(sheared.bf16, 0.1);
    EXPECT_FALSE(sheared.sound());

    p.forward = at::eye(kDim);
    p.back = at::eye(kDim);
    p.forward[3][3] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(check_transform(p).sound());
  }
}

TEST(TransformCheck, HeadsWithoutSignalPass) {
  HeadProblem p = problem_of(Side::kKey);
  p.q.zero_();
  EXPECT_TRUE(check_transform(p).sound());
  p = problem_of(Side::kValue);
  p.v.zero_();
  EXPECT_TRUE(check_transform(p).sound());
}

TEST(TransformCheck, TheWorstHeadCounts) {
  TransformCheck all;
  all.add({1e-6, 0.003, 0.002});
  all.add({1e-7, 0.004, 0.001});
  EXPECT_EQ(all.change, 1e-6);
  EXPECT_EQ(all.bf16, 0.004);
  all.add({std::numeric_limits<double>::quiet_NaN(), 0.0, 0.0});
  EXPECT_FALSE(all.sound());
  all.add({1e-7, 0.004, 0.001});
  EXPECT_FALSE(all.sound());
}

}  // namespace
}  // namespace oscar
