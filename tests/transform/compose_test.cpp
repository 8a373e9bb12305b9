#include "transform/compose.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

namespace oscar {
namespace {

at::Tensor random_orthogonal(std::int64_t batch, std::int64_t d, std::uint64_t seed) {
  at::manual_seed(seed);
  return std::get<0>(at::linalg_qr(at::randn({batch, d, d}, at::kDouble)));
}

at::Tensor permutation_matrix(const std::vector<std::int64_t>& perm) {  // (X P)[:, j] = X[:, perm[j]]
  const auto d = static_cast<std::int64_t>(perm.size());
  at::Tensor p = at::zeros({d, d}, at::kDouble);
  for (std::int64_t j = 0; j < d; ++j) p[perm[static_cast<std::size_t>(j)]][j] = 1.0;
  return p;
}

class ComposeOfSize : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(ComposeOfSize, IsOrthogonalAndKeepsLogits) {
  const std::int64_t d = GetParam();
  const at::Tensor m = compose_rotation(random_orthogonal(2, d, 1));
  EXPECT_LT(orthogonality_error(m), 1e-12);
  const at::Tensor q = at::randn({2, 17, d}, at::kFloat), k = at::randn({2, 19, d}, at::kFloat);
  const at::Tensor rotation = m.to(at::kFloat);
  const at::Tensor before = at::matmul(q, k.transpose(1, 2));
  const at::Tensor after = at::matmul(at::matmul(q, rotation), at::matmul(k, rotation).transpose(1, 2));
  EXPECT_LT((before - after).abs().max().item<double>(), 1e-5 * static_cast<double>(d));
  EXPECT_LT(((before - after).norm() / before.norm()).item<double>(), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ComposeOfSize, ::testing::Values(8, 64, 80, 96, 128, 256));

TEST(Compose, IsRTimesHTimesP) {
  const at::Tensor r = random_orthogonal(1, 16, 3)[0];
  const at::Tensor p = permutation_matrix(bit_reversal_permutation(16));
  const at::Tensor m = compose_rotation(r);
  EXPECT_LT((m - r.mm(hadamard_matrix(16)).mm(p)).abs().max().item<double>(), 1e-14);
  EXPECT_LT((m.mm(p.t()).mm(hadamard_matrix(16)) - r).abs().max().item<double>(), 1e-14);  // M P^T H = R
}

TEST(Compose, HadamardTimesPermutationIsSignsBitReversalHadamard) {
  // H P = D B H with D = diag((-1)^popcount(i)) and B the bit-reversal row permutation.
  const std::int64_t d = 128;
  const at::Tensor h = hadamard_matrix(d);
  at::Tensor signs = at::zeros({d, d}, at::kDouble), reversal = at::zeros({d, d}, at::kDouble);
  for (std::int64_t i = 0; i < d; ++i) {
    signs[i][i] = std::popcount(static_cast<unsigned>(i)) % 2 == 0 ? 1.0 : -1.0;
    reversal[i][bit_reverse(i, 7)] = 1.0;
  }
  const at::Tensor left = h.mm(permutation_matrix(bit_reversal_permutation(d)));
  EXPECT_LT((left - signs.mm(reversal).mm(h)).abs().max().item<double>(), 1e-14);
}

TEST(Compose, SpreadsAnyMomentEvenlyOverChannels) {
  // After R H every channel carries tr / d of the fitted moment (block-diagonal sizes: tr of the block / B).
  const std::int64_t d = 64;
  const at::Tensor r = random_orthogonal(1, d, 4)[0];
  const at::Tensor energies = at::arange(1, d + 1, at::kDouble).pow(3);
  const at::Tensor moment = r.mm(at::diag(energies)).mm(r.t());
  const at::Tensor m = compose_rotation(r);
  const at::Tensor channel = m.t().mm(moment).mm(m).diagonal();
  EXPECT_LT(((channel - energies.mean()) / energies.mean()).abs().max().item<double>(), 1e-12);
}

TEST(Compose, OrthogonalityErrorSeesNan) {
  at::Tensor m = at::eye(4, at::kFloat);
  m[1][2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(orthogonality_error(m), std::numeric_limits<double>::infinity());
  EXPECT_NEAR(orthogonality_error(2.0 * at::eye(4, at::kFloat)), 3.0, 1e-12);
}

}  // namespace
}  // namespace oscar
