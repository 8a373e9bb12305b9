#include "transform/compose.h"

#include <ATen/ATen.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/errors.h"

namespace oscar {
namespace {

at::Tensor index_tensor(const std::vector<std::int64_t>& indices) {
  return at::tensor(at::ArrayRef<std::int64_t>(indices), at::kLong);
}

}  // namespace

std::int64_t hadamard_block(std::int64_t d) {
  if (d < 1) throw UsageError("head_dim is " + std::to_string(d) + ", expected a positive number");
  return d & -d;
}

at::Tensor hadamard_matrix(std::int64_t d, const at::TensorOptions& options) {
  const std::int64_t block = hadamard_block(d);
  at::Tensor h = at::ones({1, 1}, options);
  while (h.size(0) < block) h = at::cat({at::cat({h, h}, 1), at::cat({h, -h}, 1)}, 0);
  h = h / std::sqrt(static_cast<double>(block));
  return at::block_diag(std::vector<at::Tensor>(static_cast<std::size_t>(d / block), h));
}

std::int64_t bit_reverse(std::int64_t i, int bits) {
  std::int64_t reversed = 0;
  for (int b = 0; b < bits; ++b) reversed |= ((i >> b) & 1) << (bits - 1 - b);
  return reversed;
}

std::vector<std::int64_t> bit_reversal_permutation(std::int64_t d) {
  const std::int64_t block = hadamard_block(d);
  const int bits = std::countr_zero(static_cast<std::uint64_t>(block));
  std::vector<std::int64_t> perm(static_cast<std::size_t>(d));
  for (std::int64_t j = 0; j < d; ++j) {
    const std::int64_t start = j / block * block;
    perm[static_cast<std::size_t>(j)] = start + block - 1 - bit_reverse(j - start, bits);
  }
  return perm;
}

std::vector<std::int64_t> rank_distribution(std::int64_t d) {
  const std::int64_t block = hadamard_block(d);
  const std::int64_t blocks = d / block;
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(d));
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t slot = 0; slot < block; ++slot) {
      const std::int64_t hand = slot % 2 == 0 ? b : blocks - 1 - b;
      ranks[static_cast<std::size_t>(b * block + slot)] = slot * blocks + hand;
    }
  }
  return ranks;
}

at::Tensor compose_rotation(const at::Tensor& eigenvectors) {
  const std::int64_t d = eigenvectors.size(-1);
  const at::Tensor dealt = eigenvectors.to(at::kDouble).index_select(-1, index_tensor(rank_distribution(d)));
  return at::matmul(dealt, hadamard_matrix(d)).index_select(-1, index_tensor(bit_reversal_permutation(d)));
}

double orthogonality_error(const at::Tensor& matrices) {
  const at::Tensor m = matrices.to(at::kDouble);
  if (m.numel() == 0) return 0.0;
  const at::Tensor product = at::matmul(m, m.transpose(-2, -1)) - at::eye(m.size(-1), at::kDouble);
  const double error = product.abs().max().item<double>();
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace oscar
