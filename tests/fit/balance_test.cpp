#include "fit/balance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fit/side_moments.h"

namespace oscar {
namespace {

at::Tensor random_moment(std::int64_t d, std::int64_t rows) {
  const at::Tensor x = at::randn({rows, d}, at::kDouble) * at::linspace(0.3, 2.0, d, at::kDouble);
  return at::matmul(x.t(), x) / static_cast<double>(rows);
}

double largest(const at::Tensor& t) { return t.abs().max().item<double>(); }

// Both sides diagonal, and equal.
void expect_balanced(const Balanced& b, const at::Tensor& c, const at::Tensor& m, double slack) {
  const std::int64_t d = c.size(0);
  const at::Tensor diagonal = at::diag(b.lambda);
  const double scale = b.lambda[0].item<double>();
  EXPECT_LT(largest(at::matmul(at::matmul(b.basis.t(), c), b.basis) - diagonal), slack * scale);
  EXPECT_LT(largest(at::matmul(at::matmul(b.inverse, m), b.inverse.t()) - diagonal), slack * scale);
  EXPECT_LT(largest(at::matmul(b.basis, b.inverse) - at::eye(d, at::kDouble)), slack);
  EXPECT_TRUE((b.lambda.narrow(0, 0, d - 1) >= b.lambda.narrow(0, 1, d - 1)).all().item<bool>());
}

TEST(Balance, UnitMomentsGiveAnOrthogonalBasis) {
  const at::Tensor eye = at::eye(8, at::kDouble);
  const Balanced b = balance(eye, eye, "head");
  expect_balanced(b, eye, eye, 1e-12);
  EXPECT_LT(largest(b.lambda - 1.0), 1e-12);
  EXPECT_NEAR(b.condition, 1.0, 1e-9);
}

TEST(Balance, EqualMomentsNeedOnlyARotation) {
  at::manual_seed(1);
  const at::Tensor c = random_moment(16, 200);
  const Balanced b = balance(c, c, "head");
  expect_balanced(b, c, c, 1e-10);
  // G = C^-1 # C = I: the rows keep their lengths.
  EXPECT_LT(largest(at::matmul(b.basis, b.basis.t()) - at::eye(16, at::kDouble)), 1e-9);
}

TEST(Balance, InverseMomentsLeaveNothingToAllocate) {
  at::manual_seed(2);
  const at::Tensor c = random_moment(16, 200);
  const Balanced b = balance(c, at::linalg_inv(c) * 4.0, "head");
  EXPECT_LT(largest(b.lambda - 2.0), 1e-9);  // sqrt(eig(C M)) = 2 everywhere
}

TEST(Balance, LambdaIsTheRootOfTheProductsEigenvalues) {
  at::manual_seed(3);
  const at::Tensor c = random_moment(24, 300), m = random_moment(24, 100);
  const Balanced b = balance(c, m, "head");
  expect_balanced(b, c, m, 1e-9);
  const at::Tensor product = std::get<0>(at::real(at::linalg_eigvals(at::matmul(c, m))).sort(-1, true)).sqrt();
  EXPECT_LT(largest(b.lambda - product), 1e-9 * product[0].item<double>());
}

TEST(Balance, RankOneMetricAfterDamping) {
  at::manual_seed(4);
  const at::Tensor c = random_moment(16, 400), w = at::randn({16}, at::kDouble);
  const at::Tensor m = damped(at::outer(w, w), 1e-3, 1 << 20);
  const Balanced b = balance(damped(c, 1e-3, 1 << 20), m, "head");
  expect_balanced(b, damped(c, 1e-3, 1 << 20), m, 1e-9);
  EXPECT_GT(b.lambda[0].item<double>(), 10.0 * b.lambda[1].item<double>());
}

TEST(Balance, ScalingSingleChannelsChangesNothing) {
  at::manual_seed(5);
  const at::Tensor c = random_moment(16, 200), m = random_moment(16, 150);
  const at::Tensor s = at::pow(2.0, at::arange(16).to(at::kDouble) - 4.0);
  const auto fit = [](const at::Tensor& cov, const at::Tensor& metric) {
    return balance(damped(cov, 1e-3, 1000), damped(metric, 1e-3, 1000), "head");
  };
  const Balanced plain = fit(c, m), scaled = fit(c * at::outer(s, s), m / at::outer(s, s));
  EXPECT_LT(largest(plain.lambda - scaled.lambda), 1e-9 * plain.lambda[0].item<double>());
  // The sign rule looks at the largest component, which scaling may move: compare up to sign.
  const at::Tensor other = scaled.basis * s.unsqueeze(1);
  EXPECT_LT(largest(plain.basis.abs() - other.abs()), 1e-7 * largest(plain.basis));
  EXPECT_NEAR(plain.condition, scaled.condition, 1e-6 * plain.condition);
}

TEST(Damping, MakesAnySecondMomentDefinite) {
  at::manual_seed(7);
  const at::Tensor x = at::randn({3, 16}, at::kDouble);
  at::Tensor moment = at::matmul(x.t(), x);
  moment.select(0, 5).zero_();  // a channel that never varies
  moment.select(1, 5).zero_();
  const at::Tensor d = damped(moment, 1e-3, 3);
  EXPECT_GT(at::linalg_eigvalsh(d)[0].item<double>(), 0.0);
  EXPECT_LT(largest(damped(moment, 0.0, 1 << 30) - moment), 1e-5 * largest(moment));  // a long sample is left alone
}

}  // namespace
}  // namespace oscar
