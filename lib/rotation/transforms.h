// The table of transforms that oscar-fit --method knows. Adding one is adding a row and a builder.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

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

struct TransformKind {
  std::string id;               // value of --method
  std::string summary;          // for --help
  std::string key_objective;    // names of the published files, "qqt_r_h_pbr"
  std::string value_objective;  //
  bool metric_aware = false;    // fitted to rows and metric (metric_fit.h); `build` is null
  bool data_free = false;       // no eigenvectors needed: `values` and `vectors` are left undefined
  SideTransform (*build)(const SideInput&) = nullptr;  // without clip
};

const std::vector<TransformKind>& transform_kinds();
// UsageError with the list for an unknown id.
const TransformKind& find_transform(const std::string& id);

// The same transforms for other callers (baselines of verify). [1, d, d] F32, eigenvalues ones as published.
SideTransform identity_side(std::int64_t head_dim);
SideTransform hadamard_side(std::int64_t head_dim);

}  // namespace oscar
