#include "transform/compose.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <vector>

#include "transform/hadamard.h"
#include "transform/permutation.h"

namespace oscar {
namespace {

at::Tensor index_tensor(const std::vector<std::int64_t>& indices) {
  return at::tensor(at::ArrayRef<std::int64_t>(indices), at::kLong);
}

}  // namespace

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
