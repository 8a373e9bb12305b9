// Rotations and other transforms of keys and values as data, shared by fit, bundle, cache and export.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "codec/codec.h"

namespace oscar {

// The transform of one side (keys or values) of one layer. Row vectors: x' = (x - mean) forward. Keys: q' = q
// query_side, with forward query_side^T = I. Values: o = o' inverse + mean, with forward inverse = I. Orthogonal
// transforms store only `forward`: q' = q forward, o = o' forward^T (+ mean).
struct SideTransform {
  at::Tensor forward;         // [1 or Hkv, d, d] F32; first dimension 1: shared by all KV heads
  at::Tensor query_side;      // keys with a non-orthogonal transform: same shape as forward; else undefined
  at::Tensor inverse;         // values with a non-orthogonal transform: same shape as forward; else undefined
  at::Tensor mean;            // undefined, or [Hkv, d]
  bool rotated_mean = false;  // keys: `mean` is the mean of keys before RoPE; x' = (x - RoPE_p(mean)) forward
  at::Tensor eigenvalues;     // [1 or Hkv, d], ascending
  std::vector<float> clip;    // [1 or Hkv]; 0: off
  // Storage of the transformed rows. Empty: 2-bit codes (layout uniform). Else the widths of layout blocks, one set for
  // all heads, with the deviation of each head's blocks.
  std::vector<std::uint8_t> widths;  // empty or [4]
  bool refined = false;              // latent attention, with `widths`: the last block codes what the first loses
  at::Tensor sigma;                  // undefined, or [Hkv, 4] F32 with `widths`
  bool orthogonal() const { return !query_side.defined() && !inverse.defined(); }
  // The counterpart of `forward` on this side: query_side for keys, inverse for values.
  at::Tensor& back(Side side) { return side == Side::kKey ? query_side : inverse; }
  const at::Tensor& back(Side side) const { return side == Side::kKey ? query_side : inverse; }
  bool blocks() const { return !widths.empty(); }
  // group: of layout uniform; 0: one group per head.
  RowCode code(std::int64_t head_dim, std::int64_t group) const {
    if (!blocks()) return uniform_code(static_cast<int>(head_dim), static_cast<int>(group));
    return band_code(static_cast<int>(head_dim), {widths.at(0), widths.at(1), widths.at(2), widths.at(3)}, refined);
  }
};

// The clip ratios of the published launch lines.
inline constexpr float kPublishedKeyClip = 0.96f, kPublishedValueClip = 0.92f;

struct LayerTransform {
  std::int64_t layer = 0;  // global layer id
  std::int64_t head_dim = 0, kv_heads = 0;
  SideTransform key, value;
};

}  // namespace oscar
