// Quantizes the newest token of each sequence in all layers of a step, in one launch, whatever the layers' codes. The
// token is read from the BF16 windows; a token of the sink gets no codes. CPU reference: flush_tokens() of
// python/oscar_kv, layer by layer. It reads on the device, so a captured step follows the lengths.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize/quantize_pages.h"

namespace oscar::kernels {

// Keys or values of one layer. All pointers are device pointers; fields as in QuantizePagesParams. Its size is fixed,
// because callers keep arrays of it as bytes.
inline constexpr int kNewestSideBytes = 256;
struct alignas(kNewestSideBytes) NewestSide {
  SideLayout layout;
  std::uint8_t* pages;
  const std::uint8_t* windows;
  const float* clip;   // [Hkv]
  const float* sigma;  // [Hkv, 4], or null
  std::int32_t* bad;
  std::int32_t page_bytes;
  bool value_side;
  bool refined = false;  // of latents: latent_page.h
};

static_assert(sizeof(NewestSide) == kNewestSideBytes);

// R sequences. All layers have the same KV heads, head size and places in table and windows.
struct NewestTokensParams {
  const NewestSide* sides;           // [side_count]; sides without codes are skipped. null: those of `layer`
  const std::int32_t* lengths;       // [R] tokens with the new one; 0: the sequence is skipped
  const std::int32_t* page_table;    // [R, max_pages]
  const std::int32_t* window_table;  // [R, sink_pages + ring_pages]
  std::int32_t side_count, batch, max_pages, kv_heads, head_dim;
  std::int32_t sink, sink_pages, ring_pages;
  QuantizeEncoder encoder;  // kMinMax or kSearch
  NewestSide layer[2];      // keys and values
};

// cudaErrorInvalidValue for a head size other than 64, 128, 256 and 512. Allocates nothing, does not synchronize, may
// be captured. Two sequences may not share a page.
cudaError_t newest_tokens(const NewestTokensParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
