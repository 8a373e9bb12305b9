// Does the paged cache hold what the encoder of the method makes of the rows? For checks of any backend.
#pragma once

#include <cstdint>

#include "attention/cached_attention.h"
#include "cache/kv_cache.h"
#include "model/attention.h"

namespace oscar {

struct StoredRows {
  std::int64_t rows = 0;       // coded rows compared: tokens x KV heads
  std::int64_t differing = 0;  // whose codes, parameters or norms are others
};

// Keys or values of one layer of sequence 0. input: all its tokens, from position 0 on; spec: cache_spec() of the
// method.
StoredRows compare_stored_rows(const PagedAttention& cache, const KvMethod& method, const KvCacheSpec& spec,
                               const AttentionInput& input, Side side);

}  // namespace oscar
