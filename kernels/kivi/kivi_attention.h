// Decode attention over the pages of KIVI (arXiv 2402.02750) and OScaR (arXiv 2605.19660). Two-bit keys are coded per
// channel in groups of tokens, two-bit values per token in groups of channels, and each side has its own BF16 windows.
// The pages equal lib/cache/kivi_pages.h, byte for byte. CPU reference (the specification): decode_attention_two_pass,
// lib/attention/cpu/decode_attention_cpu.h. Raw pointers, no LibTorch.
//
//   logit_j = softmax_scale <q, khat_j>, then soft_cap tanh(logit / soft_cap) if soft_cap > 0
//   p_j = exp(logit_j) / (sum_i exp(logit_i) + exp(sink_logit));  coded = sum over coded values, plain = over BF16 ones
// The two sums stay separate because coded values may be in a rotated basis: o = plain + (coded, rotated back).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace oscar::kernels {

// B sequences, Hq query heads, Hkv KV heads, g = Hq / Hkv, D head_dim. All pointers are device pointers.
struct KiviSequence {
  const std::uint16_t *sink_key, *sink_value;   // [sink, Hkv, D] BF16
  const std::int32_t *key_pages, *value_pages;  // ids of the pages of 128 tokens after the sink
  std::int32_t length;                          // tokens in the cache, including the current one; 0: skipped
  std::int32_t key_body, value_body;            // coded tokens after the sink
  // [.., Hkv, D] BF16: the uncoded token i after the sink is in row i - key_first or i - value_first.
  const std::uint16_t *recent_key, *recent_value;
  std::int32_t key_first, value_first;  // at most the body
};

// Keys or values of one layer. A page holds 128 FP32 norms of tokens (with `norms`), then codes and parameters per KV
// head.
struct KiviSide {
  const std::uint8_t* pages;  // 16-byte aligned
  std::int64_t page_bytes;
  std::int32_t head_bytes;   // bytes of one KV head in a page, a multiple of 16
  std::int32_t quant_group;  // 32, 64 or 128; values: at most D
  bool norms;                // keys only
};

struct KiviAttentionParams {
  const float* q;                 // [B, Hq, D] in the model's basis
  const float* q_coded;           // [B, Hq, D] in the basis of the coded keys
  float* plain;                   // [B, Hq, D] outputs in the model's basis
  float* coded;                   // [B, Hq, D] outputs in the basis of the coded values
  const KiviSequence* sequences;  // [B]
  const float* sink_logits;       // [Hq] or null
  void* workspace;                // kivi_attention_workspace_bytes()
  KiviSide key, value;
  std::int32_t batch, query_heads, kv_heads, head_dim;
  std::int32_t sink;            // BF16 tokens at the start, equal for keys and values
  std::int32_t max_pages;       // at least the number of full pages of the longest sequence
  std::int32_t max_loose;       // bound on the tokens of any sequence outside pages that are full on both sides
  std::int32_t sliding_window;  // 0: none; w: the query sees the last w tokens
  std::int32_t chunk;           // 0: none; c: the query's own chunk of c tokens, without a sliding window
  float scale, soft_cap;        // soft_cap 0: none
};

std::size_t kivi_attention_workspace_bytes(const KiviAttentionParams& params);

// cudaErrorInvalidValue for a shape that is not built: D other than 64 and 128, groups other than 32, 64 and 128. Two
// launches, which depend only on the host's fields: the attention of parts, and their merge. Allocates nothing, does
// not synchronize; may be captured into a graph. Equal inputs give equal bits.
cudaError_t kivi_attention(const KiviAttentionParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
