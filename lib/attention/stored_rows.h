// Checks that the paged cache holds the encoder's codes of the rows, and that it decodes to the rows that are scored.
// For any backend.
#pragma once

#include <cstdint>

#include "attention/cached_attention.h"
#include "cache/kv_cache.h"
#include "model/attention.h"

namespace oscar {

struct StoredRows {
  std::int64_t rows = 0;       // coded rows compared: tokens x KV heads
  std::int64_t differing = 0;  // rows with a difference
};

// Pages of a side to compare: every `step`-th, from page `first` on.
struct PageSample {
  std::int64_t first = 0, step = 1;
};

// Compares keys or values of one layer of sequence 0. Codes, parameters and norms must equal the CPU encoder's. input:
// all its tokens, from position 0 on; spec: cache_spec() of the method.
StoredRows compare_stored_rows(const PagedAttention& cache, const KvMethod& method, const KvCacheSpec& spec,
                               const AttentionInput& input, Side side, const PageSample& sample = {});

// The same for other pages, after decoding on the CPU. The decoded rows must equal the simulated prefill's rows
// (decoded_rows(), on the device of the input), up to 1e-5 of the row's largest magnitude. It skips layers that the
// bundle leaves out, which the prefill has in BF16.
StoredRows compare_read_rows(const PagedAttention& cache, const KvMethod& method, const KvCacheSpec& spec,
                             const AttentionInput& input, Side side, const PageSample& sample = {});

}  // namespace oscar
