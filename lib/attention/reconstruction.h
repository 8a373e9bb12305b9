// What the queries of a sequence read from the cache, in the model's own basis: for metrics on tensors.
#pragma once

#include "attention/prefill_core.h"
#include "cache/kv_method.h"

namespace oscar {

// rows: [T, Hkv, d], keys or values of one sequence from position 0 on. The mean that a centered cache leaves out is
// added again. `coded` is undefined where the method keeps the layer in BF16. `noise` stays in the basis of the codes.
CachedRows decoded_model_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows);

// The same in the basis of the cache: what attend_cached() takes. Both work on the device of the rows (device_rows.h).
CachedRows decoded_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows);

}  // namespace oscar
