// Between the model's basis and that of the cache, by the transforms of a layer. Null transform: identity. Rows go to
// the CPU, the others stay on the device of their first argument. What every attend() begins and ends with is at the
// end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cache/kv_method.h"
#include "model/attention.h"
#include "rotation/transform.h"

namespace oscar {

// q' = q forward (or query_side), of the KV head each query head reads. q: [T, Hq, d]; FP32, contiguous.
at::Tensor rotate_queries(const at::Tensor& q, const SideTransform* key, std::int64_t kv_heads);

// o = o' forward^T (or inverse) + weight_sum mean. outputs: [T, Hq, d] FP32; weight_sum: [T, Hq], the sum of
// the softmax weights of the tokens, or undefined where it is 1 (no sink logits).
at::Tensor restore_outputs(const at::Tensor& outputs, const SideTransform* value, std::int64_t kv_heads,
                           const at::Tensor& weight_sum);

// What keys stored without their mean lose from every logit of a query: scale <q, mean>, [T, Hq] FP32. Undefined where
// keys are not centered, or by a rotated mean (then it differs between keys: add_position_queries(), mean_rows()). A
// softmax over keys alone does not see it; soft caps and sink logits do.
at::Tensor logit_shift(const at::Tensor& q, const SideTransform* key, std::int64_t kv_heads, double scale);

// A rotated mean as it stands at each position, in the basis of the cache: what dots of rotate_queries() with stored
// keys lack. rope_phases: [T, d] from position 0 on; returns [Hkv, T, d] FP32 on their device.
at::Tensor mean_rows(const SideTransform& key, const at::Tensor& rope_phases);

}  // namespace oscar
