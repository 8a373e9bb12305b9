// The orthogonal transforms of the methods (registry/registry.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "registry/registry.h"
#include "rotation/targets.h"
#include "rotation/transform.h"

namespace oscar {

// What a transform is built from: one side of one layer. S = 1 (scope layer) or Hkv (scope head). All FP64.
struct SideInput {
  Side side = Side::kKey;
  at::Tensor target;   // [S, d, d] per-token moment whose eigenvectors follow
  at::Tensor values;   // [S, d] ascending
  at::Tensor vectors;  // [S, d, d] in columns
};

// Without clip. Data-free transforms need no `values` and `vectors`. kBalanced is not made here (metric_fit.h).
SideTransform build_transform(MethodTransform transform, const SideInput& input);

// The same transforms for other callers (baselines of verify). [1, d, d] F32, eigenvalues ones as published.
SideTransform identity_side(std::int64_t head_dim);
SideTransform hadamard_side(std::int64_t head_dim);

}  // namespace oscar
