// Decode attention over the three-tier cache: one new token of each sequence attends to its sink and recent tokens
// (BF16) and to the quantized tokens between them. Pages have layout `uniform` with quant_group = head_dim and FP16
// parameters, or layout `blocks`. All is in rotated space, in one launch, or in two if logits depend on the position.
// CPU reference (the specification): lib/attention/cpu/decode_attention_cpu.h. Raw pointers, no LibTorch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/common/fragment_pages.h"

namespace oscar::kernels {

// Two kernels support every shape (decode/stream_kernel.cuh, decode/cluster_kernel.cuh); a third is for the fewest
// items (decode/parts_kernel.cuh). The launch chooses. kHalfStream is kStream with half the warps per block, or a
// quarter, where a block of kStream does not fit; there kStream chooses it, too.
enum class DecodeKernel : std::int32_t { kAuto, kStream, kCluster, kParts, kHalfStream };

// B sequences, Hq query heads, Hkv KV heads, g = Hq / Hkv, D head_dim. All pointers are device pointers.
struct PagedDecodeParams {
  const void* q;                     // [B, Hq, D] BF16, rotated
  void* out;                         // [B, Hq, D] BF16 (or FP32 if out_float); 8-byte aligned
  float* lse = nullptr;              // [B, Hq] natural logarithm of the softmax denominator, or null
  const std::uint8_t* pages;         // [pages, Hkv, decode_page_layout().bytes()] of this layer; 16-byte aligned
  const std::int32_t* page_table;    // [B, max_pages]; entry i: page of the 64 tokens from sink + 64 i on
  const std::uint8_t* window_pages;  // [window pages, Hkv, window_page_bytes(D)] of this layer
  const std::int32_t* window_table;  // [B, sink_pages + ring_pages]: sink pages, then the ring of recent tokens
  const std::int32_t* lengths;       // [B] tokens in the cache, including the current one; 0: the sequence is skipped
  const float* sink_logits;          // [Hq] extra logits of the softmax denominator, or null
  void* workspace;                   // decode_attention_workspace_bytes(...), zeroed once before the first launch
  std::int32_t batch, query_heads, kv_heads, head_dim;
  std::int32_t max_pages;
  std::int32_t sink, recent, flush;  // window policy in tokens; flush a power of two
  std::int32_t sink_pages,
      ring_pages;               // ring_pages * 64 >= recent + flush - 1; token p is in ring slot p % (64 ring_pages)
  std::int32_t sliding_window;  // 0: none; w: keys j with position - j < w
  std::int32_t chunk;           // 0: none; c: the query's own chunk of c tokens, without a sliding window
  float scale;                  // softmax scale
  float soft_cap;               // 0: none
  bool out_float;
  // Layout `blocks`: widths of the four blocks, each 0, 1, 2 or 4, and their deviations. Otherwise not read.
  bool blocks = false;
  std::uint8_t key_widths[4] = {}, value_widths[4] = {};
  const float* key_sigma = nullptr;    // [Hkv, 4]
  const float* value_sigma = nullptr;  // [Hkv, 4]
  // Layout `blocks`, keys without their mean before RoPE: the logits gain scale <u(q), rope_phases> for the key's
  // position (page_queries.h, phase_logits.cuh). Either position_query, or the model's queries and the mean, of which
  // u(q) is computed: then the launch begins while the previous kernel, which writes q and the windows, still runs.
  // With one of these both tables, else none.
  const float* position_query = nullptr;       // [B, Hq, D] u(q) of lib/model/rope_phases.h
  const void* model_query = nullptr;           // [B, Hq, D] BF16 after RoPE, 8-byte aligned
  std::int64_t model_query_stride = 0;         // elements from one sequence to the next, a multiple of 4
  const float* key_mean = nullptr;             // [Hkv, D], 16-byte aligned
  const float* rope_phases = nullptr;          // [positions, D] for every position below the lengths; 16-byte aligned
  const std::uint16_t* tile_phases = nullptr;  // [tile_phases_count(D)] FP16: fill_tile_phases(); 16-byte aligned
  DecodeKernel kernel = DecodeKernel::kAuto;
};

// Whether logits depend on the position.
inline bool has_positions(const PagedDecodeParams& p) {
  return p.position_query != nullptr || p.model_query != nullptr;
}

// Layout of the code pages that the parameters describe (reads head_dim, blocks and widths).
PageLayout decode_page_layout(const PagedDecodeParams& params);

// Number of resident blocks that the launch uses on the current device; fixed per device, so graphs can be captured
// once.
int decode_attention_blocks(int head_dim, int gqa_group);
// One workspace may serve launches of any batch up to 4,096 (sequence, KV head) items, one after the other, without
// clearing it between them. It must be as large as the largest launch needs. page_queries: page_queries(max_pages,
// sink_pages + ring_pages) of page_queries.h for launches whose logits depend on the position, else 0.
std::size_t decode_attention_workspace_bytes(int head_dim, int gqa_group, int batch, int kv_heads,
                                             int page_queries = 0);

// cudaErrorInvalidValue for a shape that is not built (head_dim other than 64, 128, 256 and 512, a GQA group above 16,
// or for 512 a group above 8 or layout uniform), for widths other than 0, 1, 2 and 4, and for logits by position
// without their tables or with layout uniform. Also for kernel = kCluster if the device or the batch allows no cluster
// for each item. Also for kParts if it allows no block, or with more than 8 query heads per KV head or a head_dim above
// 128. Also for kHalfStream with a shape that never needs it, and on Hopper if the build has code for 90a.
// cudaErrorInvalidConfiguration if no block fits the device's shared memory; 99 KiB are enough for every shape. Slots
// of a page or window page without a token are read and weighted with 0. They must hold finite numbers, so zero the
// memory of pages once. Allocates nothing, does not synchronize; may be captured into a graph. Equal inputs give equal
// bits.
cudaError_t decode_attention(const PagedDecodeParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
