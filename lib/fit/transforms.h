// The orthogonal transforms of the methods (registry/registry.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "fit/targets.h"
#include "registry/registry.h"
#include "transform/transform.h"

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

}  // namespace oscar
