// Reads quantized tokens of one layer back as rows, for attention of a new prompt part over a quantized prefix. CPU
// references, bit for bit: RowPages::get() of lib/cache/row_pages.h and decode_rows() of lib/codec/codec.h. Raw
// pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize/quantize_pages.h"

namespace oscar::kernels {

// N rows (tokens), Hkv KV heads, D head_dim. All pointers are device pointers.
struct DequantizePagesParams {
  const std::uint8_t* pages;  // [pages, Hkv, page_bytes]
  const PageRun* runs;        // [run_count]
  const float* sigma;         // [Hkv, 4] deviations (scale bytes only), or null
  void* rows;                 // [N, Hkv, D] FP32, or BF16 if rows_bfloat16, in the cache basis
  SideLayout layout;          // layout of the side that is read
  std::int64_t page_bytes;
  std::int32_t run_count, kv_heads;
  bool value_side;
  bool rows_bfloat16;
};

// cudaErrorInvalidValue for a head_dim above 512. Allocates nothing, does not synchronize, may be captured.
cudaError_t dequantize_pages(const DequantizePagesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
