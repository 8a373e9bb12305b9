// What Qwen3-Next and Qwen3.5 share: layers of linear attention (gated delta nets) beside attention whose outputs have
// a gate, zero-centered norms, RoPE over a quarter of each head.
#pragma once

#include "checkpoint/families/family.h"

namespace oscar {

// layer_types, or without them full attention in every full_attention_interval-th layer (4), and the sizes linear_*.
// InputError for a list that does not fit, a model without a layer of full attention, or heads that do not divide.
void read_gated_delta(const Json& config, const std::string& where, ModelConfig* out);

constexpr ConfigDefaults gated_delta_defaults(std::int64_t kv_heads, std::int64_t vocabulary) {
  ConfigDefaults defaults;
  defaults.head_dim = 256;
  defaults.kv_heads = kv_heads;
  defaults.query_heads = 16;
  defaults.vocabulary = vocabulary;
  defaults.max_position = 32768;
  defaults.reads_attention_bias = true;
  defaults.partial_rope = true;
  defaults.partial_rotary = 0.25;
  defaults.qk_norm = true;
  return defaults;
}

// Pieces and names but those of the projections that enter a gated delta net.
Family gated_delta_family(const ModelConfig& config);
// Experts, the one that every token gets, and its weight.
void add_weighted_experts(Family& family);

}  // namespace oscar
