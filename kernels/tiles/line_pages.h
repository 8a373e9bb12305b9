// Codes of KIVI's pages (lib/cache/kivi_pages.h) on a GPU. CPU reference, byte for byte: KiviPages::write(), behind the
// rotation and the norms, which are those of token_rows.h. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize/quantize_pages.h"

namespace oscar::kernels {

// Letters: N rows (tokens), Hkv KV heads, D head_dim. All pointers are device pointers.
struct LinePagesParams {
  const float* rows = nullptr;    // [N, Hkv, D] FP32 as they are coded, finite
  const float* norms = nullptr;   // [N], stored in front of a page; null: pages have none
  const PageRun* runs = nullptr;  // [run_count], whole groups where a line is a channel; two may not share a page
  std::uint8_t* pages = nullptr;  // [pages, page_bytes], 4-byte aligned; bits of other tokens are kept
  std::int64_t page_bytes = 0;
  std::int32_t head_bytes = 0, params_offset = 0;  // of one KV head; from its start
  std::int32_t run_count = 0, kv_heads = 0, head_dim = 0;
  std::int32_t bits = 2, line = 0, quant_group = 0;  // codes of a line, and those that share scale and offset
  bool channel_axis = false;                         // a line is a channel, else a token
  bool integer_zero = false;                         // the zero point is a whole number; clip: of the range, then
  float clip = 1.0f;
};

// cudaErrorInvalidValue where sizes do not fit. Allocates nothing, does not synchronize. Equal inputs give equal bytes.
cudaError_t line_pages(const LinePagesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
