// Writes the new tokens of prompts into the cache. Tensor cores bring them into the cache basis. Then they go into the
// BF16 windows, or are clipped, encoded and packed into pages, or both. One launch covers all requests of a layer.
// quantize_pages gives the same codes for the same BF16 rows, bit for bit. CPU reference: new_rows() of
// python/oscar_kv/ops/chunk_reference.py.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize/quantize_pages.h"

namespace oscar::kernels {

// Up to 64 consecutive tokens that go to one page, to one window page, or to both.
struct NewRun {
  std::int32_t first_row;       // row of the first token
  std::int32_t count;           // 0: nothing to do
  std::int32_t page;            // -1: none
  std::int32_t first_slot;      // slot in the page; first slot + count <= 64
  std::int32_t first_position;  // position of the first token in its sequence
  std::int32_t window_page;     // -1: none; a token's slot is its position mod 64, which must not wrap within a run
};

// Reads only these fields of side: pages, clip, sigma, bad, layout, page_bytes, kv_heads, encoder, value_side, rows,
// rows_bfloat16, mean and rope_phases.
struct NewRowsParams {
  QuantizePagesParams side;
  const NewRun* runs;                    // [run_count]; two runs may not share a page
  std::int64_t row_stride;               // elements from one row of side.rows to the next
  const std::uint16_t* matrix;           // [matrix_heads, 2, D, D] BF16: high and low terms of the change of basis
  std::uint8_t* windows;                 // [window pages, Hkv, window_page_bytes(D)]
  std::int32_t run_count, matrix_heads;  // matrix_heads: 1 or Hkv
  bool vectors;                          // side.rows and their stride are aligned to 16 bytes
};

// Keys and values of one layer, with the same runs. cudaErrorInvalidValue for a head_dim other than 64, 128, 256 and
// 512, or sides of different shapes. Allocates nothing, does not synchronize, may be captured. Equal inputs give equal
// bytes.
cudaError_t new_rows(const NewRowsParams& key, const NewRowsParams& value, cudaStream_t stream);

}  // namespace oscar::kernels
