// Decode attention over the three tiers of a paged cache, in its CPU form (specification:
// tests/attention/decode_attention_reference.cpp). GPU kernels compute the same from device pages: PagedDecodeParams of
// kernels/decode/decode_attention.h. Raw pointers, no Torch.
//
// For sequence b and query head h with KV head h / (Hq / Hkv), over the cached tokens j in order of position:
//   logit_j = softmax_scale <q, khat_j> + logit_shift, then soft_cap tanh(logit / soft_cap) if soft_cap > 0
//   o = sum_j p_j vhat_j,  p_j = exp(logit_j) / (sum_i exp(logit_i) + exp(sink_logit))
// Tokens 0 .. sink - 1 and the last `recent` tokens are BF16; the tokens between them are codes in pages. Scales and
// zero points stay outside the dot products: <q, khat> = s (<q, c> - z sum q), sum_j p_j vhat_j = sum_j w_j c_j - sum_j
// w_j z_j, w = p s.
#pragma once

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar {

// BF16 keys and values of one tier of one sequence: token i of the tier is in row (first + i) mod capacity.
struct WindowTier {
  const std::uint16_t* key = nullptr;    // [capacity, Hkv, d] BF16
  const std::uint16_t* value = nullptr;  // [capacity, Hkv, d] BF16
  std::int32_t tokens = 0;               // 0: the tier is empty and the pointers are not read
  std::int32_t first = 0;
  std::int32_t capacity = 0;
};

// One sequence of the batch.
struct SequenceView {
  WindowTier sink, recent;
  std::int32_t body_tokens = 0;              // tokens in pages; body token i is in slot i % 64 of pages[i / 64]
  const std::int32_t* page_table = nullptr;  // [ceil(body_tokens / 64)] page ids
};

struct TieredDecodeParams {
  std::int32_t batch = 0;        // B, one query token each: the last cached token of its sequence
  std::int32_t query_heads = 0;  // Hq
  std::int32_t kv_heads = 0;     // Hkv, divides Hq
  std::int32_t head_dim = 0;     // d
  float softmax_scale = 1.0f;
  float soft_cap = 0.0f;                    // 0: none
  std::int32_t sliding_window = 0;          // 0: none; w: the query sees the last w tokens
  std::int32_t chunk = 0;                   // 0: none; c: the query sees the tokens of its own chunk of c tokens
  const float* query = nullptr;             // [B, Hq, d], in the basis of the keys
  const float* sink_logits = nullptr;       // null, or [Hq]: joins the softmax denominator
  const float* logit_shift = nullptr;       // null, or [B, Hq]: softmax_scale <q, mean key> if keys are stored centered
  const SequenceView* sequences = nullptr;  // [B]
  const std::uint8_t* pages = nullptr;      // [pages, Hkv, page.bytes()]
  PageLayout page;
  const float* key_sigma = nullptr;    // blocks: [Hkv, 4] standard deviation of each block; else not read
  const float* value_sigma = nullptr;  // blocks: [Hkv, 4]
  float* output = nullptr;             // [B, Hq, d], in the basis of the values
  float* weight_sum = nullptr;         // null, or [B, Hq]: sum_j p_j, below 1 with a sink logit

  // The first token that the last of `tokens` tokens sees.
  std::int64_t first_token(std::int64_t tokens) const {
    if (chunk > 0) return tokens > 0 ? (tokens - 1) / chunk * chunk : 0;
    return sliding_window > 0 && tokens > sliding_window ? tokens - sliding_window : 0;
  }
};

}  // namespace oscar
