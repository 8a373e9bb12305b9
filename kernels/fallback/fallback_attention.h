// Decode attention over every cache that the CPU supports: head sizes up to 512, any number of query heads per KV head,
// every page layout of kernels/common/page_layout.h. Plain FP32
// arithmetic for verification, not for serving. CPU references (the specification): decode_attention_reference,
// decode_attention_cpu (lib/attention/cpu/decode_attention_cpu.h). Raw pointers, no
// LibTorch.
//
//   logit_j = scale (<q, khat_j> + <u, phases_j>) + logit_shift
//   logit_j = soft_cap tanh(logit_j / soft_cap), if soft_cap > 0
//   p_j = exp(logit_j) / (sum_i exp(logit_i) + exp(sink_logit))
//   o = sum_j p_j vhat_j
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar::kernels {

// B sequences, Hq query heads, Hkv KV heads, D head_dim. All pointers are device pointers.

// BF16 rows of one tier: token i of the tier is in row (first + i) mod capacity.
struct FallbackTier {
  const std::uint16_t* rows;  // [capacity, Hkv, D] BF16; not read if the tier is empty
  std::int32_t first, capacity;
};

// Keys or values of one sequence: sink_tokens in the sink tier, then body_tokens in pages, the rest in the recent tier.
struct FallbackSequenceSide {
  FallbackTier sink, recent;
  const std::int32_t* page_table;  // [ceil(body_tokens / page_tokens)] page ids
  std::int32_t sink_tokens, body_tokens;
};

struct FallbackSequence {
  FallbackSequenceSide key, value;
  std::int32_t length;  // tokens in the cache, including the current one
};

// Keys or values of one layer.
struct FallbackSide {
  const std::uint8_t* pages;  // [pages, page_bytes], 4-byte aligned
  std::int64_t page_bytes;
  std::int32_t head_bytes;  // bytes of one KV head
  std::int32_t page_tokens;
  std::int32_t values;  // 1: code bits in the order of values, 0: of keys (SideLayout)
  SideLayout layout;
  const float* sigma;  // [Hkv, 4] deviations of blocks; read if layout.params is kScaleByte
};

struct FallbackAttentionParams {
  const float* query;                 // [B, Hq, D] in the basis of the cache
  const float* position_query;        // null, or u: [B, Hq, D]
  const float* rope_phases;           // [positions, D] for the cached tokens; read with position_query
  const float* logit_shift;           // null, or [B, Hq]
  const float* sink_logits;           // null, or [Hq]
  const FallbackSequence* sequences;  // [B]
  float* output;                      // [B, Hq, D] in the basis of the cache
  float* weight_sum;                  // null, or [B, Hq]: sum_j p_j
  void* workspace;                    // fallback_attention_workspace_bytes()
  FallbackSide key, value;
  std::int32_t batch, query_heads, kv_heads, head_dim;
  std::int32_t max_tokens;      // at least the length of the longest sequence
  std::int32_t sliding_window;  // 0: none; w: the query sees the last w tokens
  std::int32_t chunk;           // 0: none; c: the query's own chunk of c tokens, without a sliding window
  float scale, soft_cap;        // soft_cap 0: none
};

std::size_t fallback_attention_workspace_bytes(const FallbackAttentionParams& params);

// cudaErrorInvalidValue for shapes that are not built: D above 512. Two launches: the attention of parts of 64 tokens,
// and their merge in order. Allocates nothing, does not synchronize. Equal inputs give equal bits, whatever else is in
// the batch.
cudaError_t fallback_attention(const FallbackAttentionParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
