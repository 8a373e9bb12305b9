// Causal attention of complete sequences over a cache. Each query sees some tokens coded and the others in BF16.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cache/kv_method.h"
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

// Appends the channels with RoPE of latent attention to plain and coded rows, rounded to BF16. k_rope: [T, 1, R], or
// undefined.
void add_rope(CachedRows& keys, const at::Tensor& k_rope);

// q: [T, Hq, d] FP32 in the basis of the keys (which may be wider than the values); returns [T, Hq, d] in the basis of
// the values. `input` provides the layer's scale, sliding window, soft cap and sink logits. shift: [T, Hq] added to
// each logit, or undefined. weight_sum: [T, Hq], filled with the sum of the softmax weights if there are sink logits.
at::Tensor attend_cached(const AttentionInput& input, const at::Tensor& q, const CachedRows& keys,
                         const CachedRows& values, const at::Tensor& shift, const at::Tensor& weight_sum);

// The rows that the queries of a sequence read from the cache.

// Rows in the model's basis, for metrics on tensors. rows: [T, Hkv, d], keys or values of one sequence from position 0
// on. The mean that a centered cache omits is added again. `coded` is undefined if the method keeps the layer in BF16.
CachedRows decoded_model_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows);

// The same in the cache basis: the input of attend_cached(). Both functions run on the device of the rows
// (device_decoded_rows.h).
CachedRows decoded_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows);

// Masks over the keys that a block of queries sees, made on the device. Masks filled on the CPU and copied took longer
// than the attention of a GPU.

// One range of keys [begin, end) per query; empty if end <= begin.
struct ColumnRanges {
  std::vector<std::int64_t> begin, end;  // [queries]
};

// [queries, columns] FP32 on the device: 1 if key `from + column` is in the query's range, else 0.
at::Tensor columns_within(const ColumnRanges& ranges, std::int64_t from, std::int64_t columns, at::Device device);

}  // namespace oscar
