#include "rotation/hadamard.h"

#include <ATen/ATen.h>

#include <bit>
#include <cmath>

#include "base/errors.h"

namespace oscar {

std::int64_t hadamard_block(std::int64_t d) {
  if (d < 1) throw UsageError("head_dim is " + std::to_string(d) + ", expected a positive number");
  return d & -d;
}

at::Tensor hadamard_matrix(std::int64_t d) {
  const std::int64_t block = hadamard_block(d);
  at::Tensor matrix = at::zeros({d, d}, at::kDouble);
  double* out = matrix.data_ptr<double>();
  const double unit = 1.0 / std::sqrt(static_cast<double>(block));
  for (std::int64_t start = 0; start < d; start += block) {
    for (std::int64_t i = 0; i < block; ++i) {
      double* row = out + (start + i) * d + start;
      for (std::int64_t j = 0; j < block; ++j) {
        row[j] = std::popcount(static_cast<std::uint64_t>(i & j)) % 2 == 0 ? unit : -unit;
      }
    }
  }
  return matrix;
}

}  // namespace oscar
