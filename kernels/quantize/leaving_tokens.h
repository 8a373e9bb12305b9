// Quantizes the tokens that leave the BF16 windows of all layers in a step of single tokens, in one launch, whatever
// the layers' codes. A sequence of n tokens, of which one is new, gives token n - 1 - recent to its page if that token
// is behind the sink. CPU reference: flush_tokens() of python/oscar_kv, layer by layer.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/quantize/quantize_pages.h"

namespace oscar::kernels {

// Keys or values of one layer. All pointers are device pointers; fields as in QuantizePagesParams. Its size is fixed,
// because callers keep arrays of it as bytes.
inline constexpr int kLeavingSideBytes = 256;
struct alignas(kLeavingSideBytes) LeavingSide {
  SideLayout layout;
  std::uint8_t* pages;
  const std::uint8_t* windows;
  const float* clip;   // [Hkv]
  const float* sigma;  // [Hkv, 4], or null
  std::int32_t* bad;
  std::int32_t page_bytes;
  bool value_side;
};

static_assert(sizeof(LeavingSide) == kLeavingSideBytes);

// R sequences. All layers have the same KV heads, head size and places in table and windows.
struct LeavingTokensParams {
  const LeavingSide* sides;          // [side_count]; sides without codes are skipped
  const std::int32_t* lengths;       // [R] tokens with the new one; 0: the sequence is skipped
  const std::int32_t* page_table;    // [R, max_pages]
  const std::int32_t* window_table;  // [R, sink_pages + ring_pages]
  std::int32_t side_count, batch, max_pages, kv_heads, head_dim;
  std::int32_t sink, recent, sink_pages, ring_pages;  // ring_pages * 64 > recent
  std::int32_t most_words;                            // leaving_words() of the sides: the most
  QuantizeEncoder encoder;                            // kMinMax or kSearch
};

// Words of shared memory for the codes of a side.
std::int32_t leaving_words(const SideLayout& side);

// cudaErrorInvalidValue for a head size other than 64, 128 and 256. Allocates nothing, does not synchronize, may be
// captured. Two sequences may not share a page.
cudaError_t leaving_tokens(const LeavingTokensParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
