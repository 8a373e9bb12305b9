// The GPU eigensolver against the CPU's, which is its specification.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fit/eigen.h"
#include "support/gpu.h"

namespace oscar {
namespace {

std::vector<std::string> names_of(std::int64_t count) {
  return std::vector<std::string>(static_cast<std::size_t>(count), "layers.0.q_gram");
}

// Second moments with spectra like those of real heads: a few strong directions over a decaying floor.
at::Tensor grams(std::int64_t count, std::int64_t d) {
  at::manual_seed(5);
  const at::Tensor scale = at::exp(at::arange(d, at::kDouble) * (-6.0 / static_cast<double>(d)));
  const at::Tensor x =
      at::matmul(at::randn({count, 4 * d, d}, at::kDouble) * scale, at::randn({count, d, d}, at::kDouble));
  return at::matmul(x.transpose(1, 2), x);
}

void expect_same_solutions(const at::Tensor& matrices) {
  const SymmetricEigen cpu = symmetric_eigen(matrices, names_of(matrices.size(0)));
  const SymmetricEigen gpu = symmetric_eigen(matrices, names_of(matrices.size(0)), at::Device(at::kCUDA, 0));
  const at::Tensor largest = cpu.values.abs().amax(1, true).clamp_min(1e-300);
  EXPECT_LT(((gpu.values - cpu.values) / largest).abs().max().item<double>(), 1e-12);
  const at::Tensor rebuilt = at::matmul(gpu.vectors * gpu.values.unsqueeze(1), gpu.vectors.transpose(1, 2));
  EXPECT_LT(((rebuilt - matrices) / largest.unsqueeze(-1)).abs().max().item<double>(), 1e-11);
  // Vectors of eigenvalues that stand alone agree, signs included.
  const at::Tensor gap = cpu.values.diff(1, 1) / largest;
  const at::Tensor edge = at::ones({matrices.size(0), 1}, at::kDouble);
  const at::Tensor alone = at::minimum(at::cat({edge, gap}, 1), at::cat({gap, edge}, 1)).gt(1e-6);
  const at::Tensor cosine = (cpu.vectors * gpu.vectors).sum(1);
  EXPECT_LT((1.0 - cosine.masked_select(alone)).abs().max().item<double>(), 1e-8);
}

TEST(SymmetricEigenOnTheGpu, EqualsTheCpu) {
  OSCAR_NEEDS_GPU();
  for (const std::int64_t d : {8, 64, 80, 128, 256}) expect_same_solutions(grams(20, d));
}

TEST(SymmetricEigenOnTheGpu, ZeroAndRankOneMatrices) {
  OSCAR_NEEDS_GPU();
  at::Tensor matrices = grams(6, 32);
  matrices[1].zero_();
  const at::Tensor v = at::arange(32, at::kDouble);
  matrices[4].copy_(at::outer(v, v));
  matrices[5].mul_(1e250);
  const SymmetricEigen gpu = symmetric_eigen(matrices, names_of(6), at::Device(at::kCUDA, 0));
  EXPECT_TRUE(at::equal(gpu.vectors[1], at::eye(32, at::kDouble)));
  EXPECT_EQ(gpu.values[1].abs().max().item<double>(), 0.0);
  EXPECT_LT((gpu.vectors[4].select(1, 31) - v / v.norm()).abs().max().item<double>(), 1e-12);
  EXPECT_TRUE(gpu.values.isfinite().all().item<bool>());
}

TEST(SymmetricEigenOnTheGpu, TwoRunsAreIdentical) {
  OSCAR_NEEDS_GPU();
  const at::Tensor matrices = grams(100, 128);
  const SymmetricEigen one = symmetric_eigen(matrices, names_of(100), at::Device(at::kCUDA, 0));
  const SymmetricEigen two = symmetric_eigen(matrices, names_of(100), at::Device(at::kCUDA, 0));
  EXPECT_TRUE(at::equal(one.values, two.values) && at::equal(one.vectors, two.vectors));
}

}  // namespace
}  // namespace oscar
