#include "fit/eigen.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/errors.h"
#include "transform/compose.h"

namespace oscar {
namespace {

SymmetricEigen solve(const at::Tensor& matrix) { return symmetric_eigen(matrix.unsqueeze(0), {"layers.3.q_gram"}); }

at::Tensor random_gram(std::int64_t d, std::int64_t rank, std::uint64_t seed) {
  at::manual_seed(seed);
  const at::Tensor x = at::randn({rank, d}, at::kDouble);
  return x.t().mm(x);
}

double reconstruction_error(const at::Tensor& matrix, const SymmetricEigen& eigen) {
  const at::Tensor v = eigen.vectors[0];
  const at::Tensor back = v.mm(at::diag(eigen.values[0])).mm(v.t());
  return ((back - matrix).abs().max() / matrix.abs().max()).item<double>();
}

TEST(SymmetricEigen, IdentityGivesIdentity) {
  const SymmetricEigen eigen = solve(at::eye(8, at::kDouble));
  EXPECT_TRUE(at::equal(eigen.values[0], at::ones(8, at::kDouble)));
  EXPECT_TRUE(at::equal(eigen.vectors[0], at::eye(8, at::kDouble)));
}

TEST(SymmetricEigen, ZeroGivesIdentity) {
  const SymmetricEigen eigen = solve(at::zeros({8, 8}, at::kDouble));
  EXPECT_TRUE(at::equal(eigen.values[0], at::zeros(8, at::kDouble)));
  EXPECT_TRUE(at::equal(eigen.vectors[0], at::eye(8, at::kDouble)));
}

TEST(SymmetricEigen, RankOneFindsItsDirection) {
  at::manual_seed(5);
  at::Tensor u = at::randn({16}, at::kDouble);
  u = u / u.norm();
  const SymmetricEigen eigen = solve(9.0 * at::outer(u, u));
  EXPECT_NEAR(eigen.values[0][15].item<double>(), 9.0, 1e-12);
  EXPECT_LT(eigen.values[0].slice(0, 0, 15).abs().max().item<double>(), 1e-12);
  EXPECT_NEAR(std::abs(eigen.vectors[0].select(1, 15).dot(u).item<double>()), 1.0, 1e-12);
  EXPECT_LT(orthogonality_error(eigen.vectors), 1e-12);
}

TEST(SymmetricEigen, AscendingAndLargestComponentPositive) {
  const at::Tensor gram = random_gram(64, 200, 6);
  const SymmetricEigen eigen = solve(gram);
  EXPECT_TRUE((eigen.values[0].slice(0, 1) >= eigen.values[0].slice(0, 0, 63)).all().item<bool>());
  for (std::int64_t column = 0; column < 64; ++column) {
    const at::Tensor v = eigen.vectors[0].select(1, column);
    EXPECT_GT(v[v.abs().argmax()].item<double>(), 0.0) << column;
  }
  EXPECT_LT(reconstruction_error(gram, eigen), 1e-12);
}

TEST(SymmetricEigen, EquallyLargeComponentsAreDecidedByTheFirst) {
  // Eigenvectors (1, -1)/sqrt(2) and (1, 1)/sqrt(2).
  const at::Tensor m = at::tensor({2.0, 1.0, 1.0, 2.0}, at::kDouble).reshape({2, 2});
  const at::Tensor v = solve(m).vectors[0];
  EXPECT_GT(v[0][0].item<double>(), 0.0);
  EXPECT_LT(v[1][0].item<double>(), 0.0);
  EXPECT_GT(v[0][1].item<double>(), 0.0);
}

TEST(SymmetricEigen, RankDeficientAndRepeatedEigenvaluesStayOrthogonal) {
  const at::Tensor few = random_gram(128, 5, 7);  // fewer tokens than dimensions
  EXPECT_LT(orthogonality_error(solve(few).vectors), 1e-12);
  EXPECT_LT(reconstruction_error(few, solve(few)), 1e-12);
  at::Tensor repeated = at::eye(128, at::kDouble) * 3.0;
  repeated[5][5] = 7.0;
  const SymmetricEigen eigen = solve(repeated);
  EXPECT_LT(orthogonality_error(eigen.vectors), 1e-14);
  EXPECT_EQ(eigen.vectors[0][5][127].item<double>(), 1.0);
}

TEST(SymmetricEigen, AnyMagnitudeWorks) {
  for (const double scale : {1e-300, 1e-30, 1e30, 1e300}) {
    const at::Tensor gram = random_gram(32, 64, 8) / 64.0;
    const SymmetricEigen eigen = solve(gram * scale);
    EXPECT_LT(orthogonality_error(eigen.vectors), 1e-12) << scale;
    EXPECT_LT(reconstruction_error(gram * scale, eigen), 1e-12) << scale;
  }
  at::Tensor huge = random_gram(32, 64, 9);
  huge[3][3] = 1e200;  // one huge value
  EXPECT_LT(orthogonality_error(solve(huge).vectors), 1e-12);
}

TEST(SymmetricEigen, SameBitsForAnyNumberOfThreads) {
  at::Tensor grams = at::stack({random_gram(64, 99, 10), random_gram(64, 70, 11), random_gram(64, 10, 12)});
  const std::vector<std::string> names = {"a", "b", "c"};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const SymmetricEigen one = symmetric_eigen(grams, names);
  at::set_num_threads(2);
  const SymmetricEigen two = symmetric_eigen(grams, names);
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(one.values, two.values));
  EXPECT_TRUE(at::equal(one.vectors, two.vectors));
}

TEST(SymmetricEigen, NamesWhatItRefuses) {
  const auto message = [](const at::Tensor& matrix) -> std::string {
    try {
      solve(matrix);
    } catch (const NumericalError& e) {
      return e.what();
    }
    return "accepted";
  };
  at::Tensor bad = at::eye(4, at::kDouble);
  bad[1][1] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message(bad), "layers.3.q_gram: holds NaN or infinity; collect the statistics again");
  bad[1][1] = std::numeric_limits<double>::infinity();
  EXPECT_NE(message(bad).find("layers.3.q_gram: holds NaN"), std::string::npos);
  at::Tensor skew = at::eye(4, at::kDouble);
  skew[0][1] = 0.5;
  EXPECT_NE(message(skew).find("not symmetric"), std::string::npos);
  at::Tensor negative = at::eye(4, at::kDouble);
  negative[2][2] = -0.5;
  EXPECT_NE(message(negative).find("negative eigenvalue"), std::string::npos);
}

}  // namespace
}  // namespace oscar
