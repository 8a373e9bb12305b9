// Does the paged cache hold what the encoder of the method makes of the rows, and does it read as what is scored? For
// checks of any backend.
#pragma once

#include <cstdint>

#include "attention/cached_attention.h"
#include "cache/kv_cache.h"
#include "model/attention.h"

namespace oscar {

struct StoredRows {
  std::int64_t rows = 0;       // coded rows compared: tokens x KV heads
  std::int64_t differing = 0;  // that are not as they should be
};

// Pages of a side that are compared: every `step`-th, from page `first` on.
struct PageSample {
  std::int64_t first = 0, step = 1;
};

// Keys or values of one layer of sequence 0, whose codes, parameters and norms must be those of the encoder on the CPU.
// input: all its tokens, from position 0 on; spec: cache_spec() of the method.
StoredRows compare_stored_rows(const PagedAttention& cache, const KvMethod& method, const KvCacheSpec& spec,
                               const AttentionInput& input, Side side, const PageSample& sample = {});

// The same of other pages: what a reader on the CPU gets from the stored bytes must be what the simulated prefill
// scores with (decoded_rows(), on the device of the input), but for 1e-5 of the row's largest magnitude. Nothing of
// layers that the bundle leaves out, which the prefill has in BF16.
StoredRows compare_read_rows(const PagedAttention& cache, const KvMethod& method, const KvCacheSpec& spec,
                             const AttentionInput& input, Side side, const PageSample& sample = {});

}  // namespace oscar
