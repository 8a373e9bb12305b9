// The orthogonal transforms of the methods (registry/registry.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "registry/registry.h"
#include "rotation/targets.h"
#include "rotation/transform.h"

namespace oscar {

// The input of a transform: one side of one layer. S = 1 (scope layer) or Hkv (scope head). All FP64.
struct SideInput {
  Side side = Side::kKey;
  at::Tensor target;   // [S, d, d] per-token moment of the eigenvectors below
  at::Tensor values;   // [S, d] eigenvalues, ascending
  at::Tensor vectors;  // [S, d, d] eigenvectors in columns
};

// Without clip. Data-free transforms do not need `values` and `vectors`. kBalanced is made elsewhere (metric_fit.h).
SideTransform build_transform(MethodTransform transform, const SideInput& input);

// The same transforms for other callers (baselines of verify). [1, d, d] F32, with eigenvalues 1 as published.
SideTransform identity_side(std::int64_t head_dim);
SideTransform hadamard_side(std::int64_t head_dim);

}  // namespace oscar
