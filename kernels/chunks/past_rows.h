// Reads the stored rows of earlier tokens back as BF16 rows of the model, packed beside the rows of new tokens. Flash
// attention then reads these keys or values in one call for all chunks of a pass. Codes are dequantized, window rows
// are read, and both leave the cache basis; rows of new tokens are copied. CPU reference: past_rows() of
// python/oscar_kv/ops/chunk_reference.py. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar::kernels {

enum class TileKind : std::int32_t { kCodes, kWindow, kNew };

// Up to 64 consecutive tokens of one page, window page, or of the new rows.
struct PastTile {
  std::int32_t kind;      // TileKind
  std::int32_t out_row;   // output row of the first token
  std::int32_t count;     // 0: nothing to do
  std::int32_t page;      // id of the page or window page; kNew: the first new row
  std::int32_t slot;      // slot of the first token in its page; slot + count <= 64
  std::int32_t position;  // position of the first token in its sequence
};

// One side of a layer. N new rows, Hkv KV heads, D head_dim. All pointers are device pointers.
struct PastRowsParams {
  const PastTile* tiles;        // [tile_count]
  const std::uint8_t* pages;    // [pages, Hkv, page_bytes]; uniform with one group, or blocks
  const std::uint8_t* windows;  // [window pages, Hkv, window_page_bytes(D)]
  const std::uint16_t* rows;    // [N, Hkv, D] BF16 new rows, 16-byte aligned
  std::int64_t row_stride;      // elements from one new row to the next, a multiple of 8
  const std::uint16_t* matrix;  // [matrix_heads, 2, D, D] BF16: high and low terms of the inverse change of basis
  const float* mean;            // [Hkv, D] added afterwards, or null
  const float* rope_phases;     // [positions, D] if the mean is a mean before RoPE, or null
  const float* sigma;           // [Hkv, 4] deviations (scale bytes only), or null
  std::uint16_t* out;           // [.., Hkv, D] BF16
  SideLayout layout;
  std::int64_t page_bytes;
  std::int32_t tile_count, kv_heads, matrix_heads;  // matrix_heads: 1 or Hkv
  bool value_side;
};

// cudaErrorInvalidValue for a head_dim other than 64, 128, 256 and 512, and for quantization groups smaller than the
// head. Allocates nothing, does not synchronize, may be captured. Equal inputs give equal bits.
cudaError_t past_rows(const PastRowsParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
