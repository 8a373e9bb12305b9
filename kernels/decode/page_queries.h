// Page queries: the first of two steps by which logits gain <u, c_p> (tile_phases.h). For every page of a sequence, and
// for every 64 tokens of its windows from a multiple of 64 on, whose first token has position p0, they are the 32
// numbers
//   y = P u',   u'_f = u_f cos(theta_f p0) + u_(D/2+f) sin(theta_f p0),
//               u'_(D/2+f) = u_(D/2+f) cos(theta_f p0) - u_f sin(theta_f p0)
// of each query head. phase_logits.cuh reads them and does the second step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/decode/decode_attention.h"
#include "kernels/decode/tile_phases.h"

namespace oscar::kernels {

// Bytes of one query head's page query: [high, low term][4 lanes t][rows 2t, 2t + 1][4 rows 8 apart] FP16.
inline constexpr int kPageTermBytes = 2 * kPageRank, kPageQueryBytes = 2 * kPageTermBytes;

// Number of page queries of a (sequence, KV head): one per page of the page table, then those of the windows, whose
// ring may begin and end within 64 tokens.
OSCAR_HD constexpr int page_queries(int max_pages, int window_pages) { return max_pages + window_pages + 1; }

// Start of the page queries of a (sequence, KV head): [B, Hkv, page_queries, gqa_group, kPageRank].
OSCAR_HD inline const std::uint8_t* page_query_source(const PagedDecodeParams& p, const std::uint8_t* queries,
                                                      int sequence, int kv_head, int gqa_group) {
  const long long item = static_cast<long long>(sequence) * p.kv_heads + kv_head;
  return queries + item * page_queries(p.max_pages, p.sink_pages + p.ring_pages) * gqa_group * kPageQueryBytes;
}

// Writes the page queries of all pages and windows that a launch with these parameters reads. queries: device memory,
// 16-byte aligned.
cudaError_t write_page_queries(const PagedDecodeParams& p, std::uint8_t* queries, cudaStream_t stream);

}  // namespace oscar::kernels
