#include "transform/hadamard.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "base/errors.h"

namespace oscar {

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

}  // namespace oscar
