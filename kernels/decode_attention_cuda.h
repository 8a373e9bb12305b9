// Decode attention over the three-tier cache: one new token of each sequence against its sink and recent tokens (BF16)
// and its quantised body (2-bit codes), all in rotated space, in one launch.
// CPU twin (the specification): lib/runtime/decode_attention_twin.h. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar::kernels {

// Letters: B sequences, Hq query heads, Hkv KV heads, g = Hq / Hkv, D head_dim. All pointers are device pointers.
struct DecodeAttentionParams {
  const void* q;                     // [B, Hq, D] BF16, rotated
  void* out;                         // [B, Hq, D] BF16 (or FP32 when out_float)
  const std::uint8_t* pages;         // [pages, Hkv, CodePage{D}.bytes()] of this layer; 16-byte aligned
  const std::int32_t* page_table;    // [B, max_pages] page of tokens sink + 64 i ... of the body
  const std::uint8_t* window_pages;  // [window pages, Hkv, window_page_bytes(D)] of this layer
  const std::int32_t* window_table;  // [B, sink_pages + ring_pages]: sink pages, then the ring of recent tokens
  const std::int32_t* lengths;       // [B] tokens in the cache, the current one included; 0: the sequence is skipped
  const float* sink_logits;          // [Hq] extra logits of the softmax denominator, or null
  void* workspace;                   // decode_attention_workspace_bytes(...), zeroed once before the first launch
  std::int32_t batch, query_heads, kv_heads, head_dim;
  std::int32_t max_pages;
  std::int32_t sink, recent, flush;  // window policy in tokens; flush a power of two
  std::int32_t sink_pages,
      ring_pages;               // ring_pages * 64 >= recent + flush - 1; token p sits in ring slot p % (64 ring_pages)
  std::int32_t sliding_window;  // 0: none; w: keys j with position - j < w
  float scale;                  // softmax scale
  float soft_cap;               // 0: none
  bool out_float;
};

// Resident blocks the launch uses on the current device; fixed for a device, so graphs can be captured once.
int decode_attention_blocks(int head_dim, int group);
std::size_t decode_attention_workspace_bytes(int head_dim, int group, int batch, int kv_heads);

// cudaErrorInvalidValue for a shape that is not built (head_dim other than 64, 128, 256, a group above 16).
// Allocates nothing, does not synchronise; may be captured into a graph. Equal inputs give equal bits.
cudaError_t decode_attention(const DecodeAttentionParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
