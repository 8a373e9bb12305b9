#include "rotation/transforms.h"

#include <ATen/ATen.h>

#include <limits>
#include <stdexcept>

#include "rotation/compose.h"
#include "rotation/hadamard.h"

namespace oscar {
namespace {

SideTransform shared_side(const at::Tensor& matrix) {
  SideTransform side;
  side.forward = matrix.unsqueeze(0).to(at::kFloat).contiguous();
  side.eigenvalues = at::ones({1, matrix.size(0)}, at::kFloat);
  side.clip = {0.0f};
  return side;
}

SideTransform eigenvector_side(const SideInput& input) {
  SideTransform side;
  side.forward = compose_rotation(input.vectors).to(at::kFloat).contiguous();
  // Eigenvalues are for people; values beyond FP32 are clamped.
  side.eigenvalues = input.values.clamp_max(std::numeric_limits<float>::max()).to(at::kFloat).contiguous();
  side.clip.assign(static_cast<std::size_t>(input.vectors.size(0)), 0.0f);
  return side;
}

}  // namespace

SideTransform identity_side(std::int64_t head_dim) { return shared_side(at::eye(head_dim, at::kDouble)); }
SideTransform hadamard_side(std::int64_t head_dim) { return shared_side(hadamard_matrix(head_dim)); }

SideTransform build_transform(MethodTransform transform, const SideInput& input) {
  switch (transform) {
    case MethodTransform::kIdentity:
      return identity_side(input.target.size(-1));
    case MethodTransform::kHadamard:
      return hadamard_side(input.target.size(-1));
    case MethodTransform::kEigenvectors:
      return eigenvector_side(input);
    case MethodTransform::kBalanced:
      break;
  }
  throw std::invalid_argument("the transform is not one of moments only");
}

}  // namespace oscar
