// Conversions between the model's basis and the cache basis, by the transforms of a layer. Null transform: identity.
// The CPU computes rows; the rest stays on the device of the first argument. The start and end of every attend() use
// these functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "transform/transform.h"

namespace oscar {

// q' = q forward (or query_side), with the KV head that each query head reads. q: [T, Hq, d]; FP32, contiguous.
at::Tensor rotate_queries(const at::Tensor& q, const SideTransform* key, std::int64_t kv_heads);

// o = o' forward^T (or inverse) + weight_sum mean. outputs: [T, Hq, d] FP32. weight_sum: [T, Hq], the sum of the
// softmax weights of the tokens; undefined if it is 1 (no sink logits).
at::Tensor restore_outputs(const at::Tensor& outputs, const SideTransform* value, std::int64_t kv_heads,
                           const at::Tensor& weight_sum);

// The term that every logit of a query lacks if keys are stored without their mean: scale <q, mean>, [T, Hq] FP32.
// Undefined if keys are not centered, or are centered by a rotated mean. That mean differs between keys:
// add_position_queries(), mean_rows(). A softmax over only keys is invariant to the term; soft caps and sink logits are
// not.
at::Tensor logit_shift(const at::Tensor& q, const SideTransform* key, std::int64_t kv_heads, double scale);

// A rotated mean at each position in the cache basis, which dot products of rotate_queries() with stored keys lack.
// rope_phases: [T, d] from position 0 on; returns [Hkv, T, d] FP32 on their device.
at::Tensor mean_rows(const SideTransform& key, const at::Tensor& rope_phases);

}  // namespace oscar
