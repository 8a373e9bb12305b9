#include "transform/compose.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/errors.h"

namespace oscar {
namespace {

TEST(Hadamard, BlockIsTheLargestPowerOfTwoThatDivides) {
  EXPECT_EQ(hadamard_block(1), 1);
  EXPECT_EQ(hadamard_block(64), 64);
  EXPECT_EQ(hadamard_block(80), 16);
  EXPECT_EQ(hadamard_block(96), 32);
  EXPECT_EQ(hadamard_block(97), 1);
  EXPECT_EQ(hadamard_block(256), 256);
  EXPECT_THROW(hadamard_block(0), UsageError);
}

TEST(Hadamard, KnownMatrixOfFour) {
  const at::Tensor expected =
      at::tensor({1.0, 1.0, 1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0, 1.0, -1.0, -1.0, 1.0}, at::kDouble)
          .reshape({4, 4}) /
      2.0;
  EXPECT_TRUE(at::equal(hadamard_matrix(4), expected));
}

class HadamardOfSize : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(HadamardOfSize, IsSymmetricAndItsOwnInverse) {
  const at::Tensor h = hadamard_matrix(GetParam());
  EXPECT_TRUE(at::equal(h, h.t()));
  EXPECT_LT(orthogonality_error(h), 1e-14);
}

TEST_P(HadamardOfSize, FollowsTheSignRuleInsideBlocks) {
  const std::int64_t d = GetParam(), block = hadamard_block(d);
  const at::Tensor h = hadamard_matrix(d);
  const auto at = h.accessor<double, 2>();
  const double unit = 1.0 / std::sqrt(static_cast<double>(block));
  for (std::int64_t i = 0; i < d; ++i) {
    for (std::int64_t j = 0; j < d; ++j) {
      const int sign = std::popcount(static_cast<unsigned>((i % block) & (j % block))) % 2 == 0 ? 1 : -1;
      ASSERT_EQ(at[i][j], i / block == j / block ? sign * unit : 0.0) << i << ", " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, HadamardOfSize, ::testing::Values(1, 2, 8, 64, 80, 96, 128, 256));

}  // namespace
}  // namespace oscar
