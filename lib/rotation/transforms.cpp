#include "rotation/transforms.h"

#include <ATen/ATen.h>

#include <limits>

#include "base/errors.h"
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

SideTransform build_identity(const SideInput& input) { return identity_side(input.target.size(-1)); }
SideTransform build_hadamard(const SideInput& input) { return hadamard_side(input.target.size(-1)); }

SideTransform build_oscar(const SideInput& input) {
  SideTransform side;
  side.forward = compose_rotation(input.vectors).to(at::kFloat).contiguous();
  // Eigenvalues are for people; one beyond FP32 is kept finite.
  side.eigenvalues = input.values.clamp_max(std::numeric_limits<float>::max()).to(at::kFloat).contiguous();
  side.clip.assign(static_cast<std::size_t>(input.vectors.size(0)), 0.0f);
  return side;
}

}  // namespace

SideTransform identity_side(std::int64_t head_dim) { return shared_side(at::eye(head_dim, at::kDouble)); }
SideTransform hadamard_side(std::int64_t head_dim) { return shared_side(hadamard_matrix(head_dim)); }

const std::vector<TransformKind>& transform_kinds() {
  static const std::vector<TransformKind> kinds = {
      {"oscar", "eigenvectors of the target, Hadamard, bit reversal: M = R H P (default)", "qqt_r_h_pbr", "sst_r_h_pbr",
       false, false, build_oscar},
      {"hadamard", "Hadamard matrix alone, data-free", "hadamard", "hadamard", false, true, build_hadamard},
      {"identity", "no rotation", "identity", "identity", false, true, build_identity},
      {"balanced", "rows and the metric of their errors made equal (not orthogonal), Hadamard; 2-bit codes", "balanced",
       "balanced", true, false, nullptr},
      {"waterfill", "balanced, with block widths that share out --bits over layers, keys, values and blocks",
       "waterfill", "waterfill", true, false, nullptr},
  };
  return kinds;
}

const TransformKind& find_transform(const std::string& id) {
  std::string known;
  for (const TransformKind& kind : transform_kinds()) {
    if (kind.id == id) return kind;
    known += (known.empty() ? "" : ", ") + kind.id;
  }
  throw UsageError("unknown method '" + id + "'; choose one of: " + known);
}

}  // namespace oscar
