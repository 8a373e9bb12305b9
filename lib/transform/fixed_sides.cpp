#include "transform/fixed_sides.h"

#include <ATen/ATen.h>

#include "transform/compose.h"

namespace oscar {
namespace {

SideTransform shared_side(const at::Tensor& matrix) {
  SideTransform side;
  side.forward = matrix.unsqueeze(0).to(at::kFloat).contiguous();
  side.eigenvalues = at::ones({1, matrix.size(0)}, at::kFloat);
  side.clip = {0.0f};
  return side;
}

}  // namespace

SideTransform identity_side(std::int64_t head_dim) { return shared_side(at::eye(head_dim, at::kDouble)); }
SideTransform hadamard_side(std::int64_t head_dim) { return shared_side(hadamard_matrix(head_dim)); }

}  // namespace oscar
