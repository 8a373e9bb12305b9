// Codes of latent attention. latent_codes() and newest_latents() clip, encode and pack rows of the cache basis;
// latent_past() reads stored tokens back. The codec is that of values (least squares), the order of codes that of keys
// (kernels/common/latent_page.h). CPU references: python/oscar_kv/ops/latent_reference.py. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/chunks/new_rows.h"
#include "kernels/common/latent_page.h"
#include "kernels/quantize/newest_tokens.h"

namespace oscar::kernels {

// New tokens of prompts. In a layer's side, as newest_tokens.h has it, layout is latent_page().codes and page_bytes are
// the bytes from page to page; value_side is not read.
struct LatentCodesParams {
  NewestSide side;  // by value; its windows are not read
  std::uint8_t* windows;
  const NewRun* runs;                  // [run_count]; two runs may not share a page
  const std::uint16_t* rows;           // [N, 512] BF16 in the cache basis
  const std::uint16_t* pe;             // [N, 64] BF16, 4-byte aligned
  std::int64_t row_stride, pe_stride;  // elements, even
  std::int32_t run_count;
  QuantizeEncoder encoder;
};
cudaError_t latent_codes(const LatentCodesParams& params, cudaStream_t stream);

// The newest token of each sequence in all layers of a step, from the windows; a token of the sink gets no codes. As
// newest_tokens(), whose kv_heads and head_dim are not read.
cudaError_t newest_latents(const NewestTokensParams& params, cudaStream_t stream);

// Stored tokens of requests as rows of 512 channels in the cache basis and 64 RoPE channels.
struct LatentPastParams {
  const std::uint8_t* pages;         // [pages, page_stride]
  const std::uint8_t* windows;       // [window pages, kLatentWindowBytes]
  const std::int32_t* page_table;    // [R, max_pages], rows table_stride apart
  const std::int32_t* window_table;  // [R, sink_pages + ring_pages]
  const std::int32_t* sequence;      // [N] request of each row
  const std::int32_t* firsts;        // [R] row of its first token here
  const std::int32_t* starts;        // [R] position of that token
  const std::int32_t* ends;          // [R] tokens of the request from sink to this one are read as codes
  const float* sigma;                // [4]
  std::uint16_t* out;                // [N, 576] BF16, 16-byte aligned rows
  std::int64_t out_stride;           // elements, a multiple of 8
  std::int64_t page_stride, table_stride;
  std::uint8_t widths[4];
  bool refined;  // the codes; then the first and the last width are not 0
  std::int32_t rows, sink, sink_pages, ring_pages;
};
cudaError_t latent_past(const LatentPastParams& params, cudaStream_t stream);

// All: cudaErrorInvalidValue for strides and sizes that are not as above. Allocate nothing, do not synchronize, may be
// captured. Equal inputs give equal bytes.

}  // namespace oscar::kernels
