// Rotations and other transforms of keys and values as data, shared by fit, bundle, runtime and export.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oscar {

// The transform of one side (keys or values) of one layer. Row vectors: x' = (x - mean) forward.
// Keys: q' = q inverse_or_query. Values: o = o' inverse_or_query + mean. Orthogonal transforms store `forward` alone:
// q' = q forward, o = o' forward^T (+ mean).
struct SideTransform {
  at::Tensor forward;           // [1 or Hkv, d, d] F32; first dimension 1: shared by all KV heads
  at::Tensor inverse_or_query;  // undefined when orthogonal; else same shape as forward
  at::Tensor mean;              // undefined, or [Hkv, d]
  at::Tensor eigenvalues;       // [1 or Hkv, d], ascending
  std::vector<float> clip;      // [1 or Hkv]; 0: off
  bool orthogonal() const { return !inverse_or_query.defined(); }
};

struct LayerTransform {
  std::int64_t layer = 0;  // global layer id
  std::int64_t head_dim = 0, kv_heads = 0;
  SideTransform key, value;
};

}  // namespace oscar
