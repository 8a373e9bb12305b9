// Common parts of Qwen3-Next and Qwen3.5: linear-attention layers (gated delta nets) beside gated attention,
// zero-centered norms, and RoPE over a quarter of each head.
#pragma once

#include "checkpoint/families/family.h"

namespace oscar {

// Reads layer_types and the sizes linear_*. Without layer_types, every full_attention_interval-th layer (default 4) has
// full attention. InputError for a list that does not fit, a model without full attention, or head counts that do not
// divide.
void read_gated_delta(const Json& config, const std::string& where, ModelConfig* out);

constexpr ConfigDefaults gated_delta_defaults(std::int64_t kv_heads, std::int64_t vocabulary) {
  return {.head_dim = 256,
          .query_heads = 16,
          .kv_heads = kv_heads,
          .vocabulary = vocabulary,
          .max_position = 32768,
          .reads_attention_bias = true,
          .partial_rope = true,
          .partial_rotary = 0.25,
          .qk_norm = true};
}

// Layer variants and tensor names, except the projections that feed a gated delta net.
Family gated_delta_family(const ModelConfig& config);
// Adds experts, the shared expert and its weight.
void add_weighted_experts(Family& family);

}  // namespace oscar
