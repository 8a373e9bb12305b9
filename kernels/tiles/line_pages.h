// Codes of KIVI's pages (lib/cache/kivi_pages.h) on a GPU. CPU reference, byte for byte: KiviPages::write(), after its
// rotation and norms, which token_rows.h computes. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize/quantize_pages.h"

namespace oscar::kernels {

// N rows (tokens), Hkv KV heads, D head_dim. All pointers are device pointers.
struct LinePagesParams {
  const float* rows = nullptr;    // [N, Hkv, D] FP32 in the basis of the codes, finite
  const float* norms = nullptr;   // [N], stored at the start of a page; null: pages have none
  const PageRun* runs = nullptr;  // [run_count], complete groups if a line is a channel; two may not share a page
  std::uint8_t* pages = nullptr;  // [pages, page_bytes], 4-byte aligned; bits of other tokens are kept
  std::int64_t page_bytes = 0;
  std::int32_t head_bytes = 0, params_offset = 0;  // bytes of one KV head; offset from its start
  std::int32_t run_count = 0, kv_heads = 0, head_dim = 0;
  std::int32_t bits = 2, line = 0, quant_group = 0;  // codes per line; codes that share scale and offset
  bool channel_axis = false;                         // true: a line is a channel, else a token
  bool integer_zero = false;                         // true: the zero point is an integer, for the range times `clip`
  float clip = 1.0f;
};

// cudaErrorInvalidValue if sizes do not fit. Allocates nothing, does not synchronize. Equal inputs give equal bytes.
cudaError_t line_pages(const LinePagesParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
