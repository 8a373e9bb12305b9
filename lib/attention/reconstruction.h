// The rows that the queries of a sequence read from the cache.
#pragma once

#include "attention/prefill_core.h"
#include "cache/kv_method.h"

namespace oscar {

// Rows in the model's basis, for metrics on tensors. rows: [T, Hkv, d], keys or values of one sequence from position 0
// on. The mean that a centered cache omits is added again. `coded` is undefined if the method keeps the layer in BF16.
CachedRows decoded_model_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows);

// The same in the cache basis: the input of attend_cached(). Both functions run on the device of the rows
// (device_decoded_rows.h).
CachedRows decoded_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows);

}  // namespace oscar
