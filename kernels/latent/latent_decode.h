// Decode attention of latent attention (MLA) in absorbed form over the three-tier cache of one layer: one new token of
// each sequence attends to its sink and recent tokens (BF16) and to the quantized tokens between them. Key and value of
// a token are one latent vector c of 512 channels in the cache basis; keys have 64 more channels k_pe after RoPE:
//   logit_h = scale (q_latent_h . c + q_pe_h . k_pe),  out_h = sum_t p_t c_t.
// Of refined codes (latent_page.h) the last plane is multiplied by the first 128 channels of the query and added to
// those of the output. Page layouts: kernels/common/latent_page.h. CPU reference (the specification):
// tests/kernels/latent_reference.h. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/latent_page.h"

namespace oscar::kernels {

// B sequences, H query heads. All pointers are device pointers.
struct LatentDecodeParams {
  const std::uint16_t* q_latent;                    // [B, H, 512] BF16 in the cache basis, aligned to 4 bytes
  const std::uint16_t* q_pe;                        // [B, H, 64] BF16 after RoPE, aligned to 4 bytes
  std::int64_t q_latent_stride[2], q_pe_stride[2];  // elements from sequence to sequence and head to head; even
  void* out;                                        // [B, H, 512] in the cache basis, BF16 (or FP32 if out_float)
  const float* after = nullptr;                     // [512] added to outputs of sequences with tokens, or null
  float* lse = nullptr;                             // [B, H] natural logarithm of the softmax denominator, or null
  const std::uint8_t* pages;                        // [pages, page_stride] of this layer; 16-byte aligned
  std::int64_t page_stride;          // bytes from page to page: at least latent_page(widths).bytes(), a multiple of 16
  const std::int32_t* page_table;    // [B, max_pages]; entry i: page of the 64 tokens from sink + 64 i on
  const std::uint8_t* window_pages;  // [window pages, kLatentWindowBytes] of this layer; 16-byte aligned
  const std::int32_t* window_table;  // [B, sink_pages + ring_pages]: sink pages, then the ring of recent tokens
  const std::int32_t* lengths;  // [B] tokens in the cache, including the current one; 0: outputs are 0, lse -infinity
  const float* sigma;           // [4] deviations of the bands
  void* workspace;              // latent_decode_workspace_bytes(...)
  std::uint8_t widths[4];       // of the four bands: 0, 1, 2 or 4
  std::int32_t batch, heads, max_pages;
  std::int32_t sink, recent;  // tokens [max(sink, length - recent), length) and those before sink are read in BF16
  std::int32_t sink_pages, ring_pages;  // ring_pages * 64 >= recent; token p is in ring slot p % (64 ring_pages)
  float scale;
  bool out_float;
  bool refined = false;  // of the codes; the first and the last band then have bits
  // The launch begins while the previous kernel still runs, which may write queries and windows, but no tables, lengths
  // or pages (latent_rows() for a step). Hopper and newer.
  bool early = false;
  // Parts into which a sequence's pages and windows are divided; 0: the launch chooses. At most kLatentMostSplits.
  std::int32_t page_splits = 0, window_splits = 0;
};

inline constexpr int kLatentMostSplits = 256;  // of pages and of windows, each

// For launches on the current device with these heads, these sequences or fewer, and these splits or any that the
// launch chooses. Reads no other fields, but with splits of its own those of the windows.
std::size_t latent_decode_workspace_bytes(const LatentDecodeParams& params);

// cudaErrorInvalidValue for widths other than 0, 1, 2 and 4, refined codes without these bits, no heads, a page_stride
// that is too small, and too many splits. Slots of a window page without a token are read and weighted with 0; they
// must hold finite numbers, so zero the memory of windows once. Allocates nothing, does not synchronize; may be
// captured into a graph. The division into parts depends on the batch, the heads and max_pages; with equal ones, equal
// inputs give equal bits.
cudaError_t latent_decode(const LatentDecodeParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
