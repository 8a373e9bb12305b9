#include "fit/transforms.h"

#include <ATen/ATen.h>

#include <limits>
#include <stdexcept>

#include "transform/compose.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

SideTransform eigenvector_side(const SideInput& input) {
  SideTransform side;
  side.forward = compose_rotation(input.vectors).to(at::kFloat).contiguous();
  // Eigenvalues are for people; values beyond FP32 are clamped.
  side.eigenvalues = input.values.clamp_max(std::numeric_limits<float>::max()).to(at::kFloat).contiguous();
  side.clip.assign(static_cast<std::size_t>(input.vectors.size(0)), 0.0f);
  return side;
}

}  // namespace

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
