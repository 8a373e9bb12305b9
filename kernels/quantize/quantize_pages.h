// Rotates, clips, quantizes and packs keys or values of one layer into cache pages, in one launch: for prefill (full
// pages) and for the tokens that leave the recent window (a few slots of a page). CPU references, bit for bit:
// rotate_rows() of lib/cache/row_loops.h, encode_rows() of lib/codec/codec.h and RowPages::put() of
// lib/cache/row_pages.h. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar::kernels {

enum class QuantizeEncoder : std::int32_t { kMinMax, kSearch };

// Tokens that go to consecutive slots of one page.
struct PageRun {
  std::int32_t first_row;  // row of the first token
  std::int32_t count;      // 0: nothing to do; first slot + count <= 64
  std::int32_t page;       // page id
  std::int32_t first_slot;
  std::int32_t first_position = 0;  // position of the first token in its sequence: for rope_phases and `bad`
};

// N rows (tokens), Hkv KV heads, D head_dim. All pointers are device pointers.
struct QuantizePagesParams {
  const void* rows;        // [N, Hkv, D] FP32, or BF16 if rows_bfloat16
  const float* mean;       // [Hkv, D] subtracted first, or null
  const float* matrix;     // [matrix_heads, D, D] FP32: row times matrix; null: identity
  std::uint16_t* rotated;  // [N, Hkv, D] BF16 bits of the rows before quantization, or null
  const PageRun* runs;     // [run_count]; read on the device, so a captured graph may be replayed with other runs
  std::uint8_t* pages;     // [pages, Hkv, page_bytes]; bits of other slots are kept. null: rows are only rotated
  const float* clip;       // [Hkv] rho of the clip rule; outside (0, 1): off
  const float* sigma;      // [Hkv, 4] deviations (scale bytes only), or null
  std::int32_t* bad;       // smallest position * Hkv + head with a non-finite value; the caller sets it to INT32_MAX
  SideLayout layout;       // layout of the side that is written
  std::int64_t page_bytes;
  std::int32_t run_count, kv_heads, matrix_heads;  // matrix_heads: 1 or Hkv
  QuantizeEncoder encoder;
  bool value_side;     // values: least squares; keys: no bias (search encoder and scale bytes)
  bool rows_bfloat16;  // type of rows

  // Source of tokens that leave the recent window. If `windows` is set, rows and matrix are not read. The rows then
  // come from the BF16 windows (kernels/common/fragment_pages.h), already in the cache basis. first_row of a run is
  // sequence * 64 ring_pages + ring slot, which wraps at the end of the ring.
  const std::uint8_t* windows = nullptr;       // [window pages, Hkv, window_page_bytes(D)]
  const std::int32_t* window_table = nullptr;  // [sequences, sink_pages + ring_pages]
  std::int32_t sink_pages = 0, ring_pages = 0;

  // [positions, D] cosines, then sines, of each position: `mean` is a mean before RoPE, and is subtracted with RoPE
  // applied for the token's position. null: the mean is the same everywhere.
  const float* rope_phases = nullptr;
};

// cudaErrorInvalidValue for a head_dim above 512. Allocates nothing, does not synchronize, may be captured. Equal
// inputs give equal bytes; two runs may not share a page.
cudaError_t quantize_pages(const QuantizePagesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
