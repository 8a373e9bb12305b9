// Causal attention of complete sequences over a cache. Each query sees some tokens coded and the others in BF16.
#pragma once

#include <ATen/core/Tensor.h>

#include "layout/cache_windows.h"
#include "model/attention.h"

namespace oscar {

// Keys or values of one sequence. Query i reads `coded` for tokens [sink, quantized_end(i + 1)) of the windows, `plain`
// for the others.
struct CachedRows {
  at::Tensor plain;  // [Hkv, T, d] FP32 contiguous
  at::Tensor coded;  // the same; undefined: every query reads plain rows
  CacheWindows windows;
};

// Adds the rotated mean to keys that were centered by it: mean_rows() of basis.h, to plain and coded rows.
void add_mean(CachedRows& keys, const at::Tensor& mean_rows);

// q: [T, Hq, d] FP32 in the basis of the keys (which may be wider than the values); returns [T, Hq, d] in the basis of
// the values. `input` provides the layer's scale, sliding window, soft cap and sink logits. shift: [T, Hq] added to
// each logit, or undefined. weight_sum: [T, Hq], filled with the sum of the softmax weights if there are sink logits.
at::Tensor attend_cached(const AttentionInput& input, const at::Tensor& q, const CachedRows& keys,
                         const CachedRows& values, const at::Tensor& shift, const at::Tensor& weight_sum);

}  // namespace oscar
