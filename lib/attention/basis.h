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

// Keys or values as the cache holds them: BF16((x - mean) forward). rows: [T, Hkv, d] floating; returns [T, Hkv, d]
// BF16 on the CPU, contiguous. Bits do not depend on T or on threads (row_rotation.h).
// rope_phases: [T, d] of the tokens' positions, needed where the mean is a rotated one (std::logic_error without).
at::Tensor transformed_rows(const at::Tensor& rows, const SideTransform* side, const at::Tensor& rope_phases = {});

// q' = q forward (or query_side), of the KV head each query head reads. q: [T, Hq, d]; FP32, contiguous.
at::Tensor rotate_queries(const at::Tensor& q, const SideTransform* key, std::int64_t kv_heads);

// o = o' forward^T (or inverse) + weight_sum mean. outputs: [T, Hq, d] FP32; weight_sum: [T, Hq], the sum of
// the softmax weights of the tokens, or undefined where it is 1 (no sink logits).
at::Tensor restore_outputs(const at::Tensor& outputs, const SideTransform* value, std::int64_t kv_heads,
                           const at::Tensor& weight_sum);

// What keys stored without their mean lose from every logit of a query: scale <q, mean>, [T, Hq] FP32. Undefined where
// keys are not centred, or by a rotated mean (then it differs between keys: add_position_queries(), mean_rows()). A
// softmax over keys alone does not see it; soft caps and sink logits do.
at::Tensor logit_shift(const at::Tensor& q, const SideTransform* key, std::int64_t kv_heads, double scale);

// A rotated mean as it stands at each position, in the basis of the cache: what dots of rotate_queries() with stored
// keys lack. rope_phases: [T, d] from position 0 on; returns [Hkv, T, d] FP32 on their device.
at::Tensor mean_rows(const SideTransform& key, const at::Tensor& rope_phases);

// Keys or values of the new tokens of a call as the cache takes them: transformed_rows() at their positions.
at::Tensor new_rows(const KvMethod& method, const AttentionInput& input, Side side);
// Both; where one vector is key and value, it is made once.
struct NewRows {
  at::Tensor keys, values;
};
NewRows new_rows(const KvMethod& method, const AttentionInput& input);

// The queries of a call in the basis of the cache, and room for what attention over the cache gives.
struct CacheQueries {
  at::Tensor q;      // [T, Hq, d] FP32, in the basis of the keys
  at::Tensor shift;  // [T, Hq] of each logit; undefined where nothing sees it
  at::Tensor positions,
      rope_phases;        // of add_position_queries(): u(q) [T, Hq, d], and [tokens, d] of all positions so far
  at::Tensor sinks;       // [Hq] FP32 sink logits of the model, or undefined
  at::Tensor output;      // to be filled: [T, Hq, d] FP32 in the basis of the values
  at::Tensor weight_sum;  // to be filled where there are sinks: [T, Hq] sums of softmax weights
};
CacheQueries cache_queries(const KvMethod& method, const AttentionInput& input, at::Device device);
// Keys with a rotated mean: what their logits lack as a query of the phases of positions, for attention over pages.
void add_position_queries(CacheQueries& queries, const KvMethod& method, const AttentionInput& input,
                          at::Device device);

// The filled output in the model's basis and type: what attend() returns.
at::Tensor model_outputs(const KvMethod& method, const AttentionInput& input, const CacheQueries& queries);

}  // namespace oscar
