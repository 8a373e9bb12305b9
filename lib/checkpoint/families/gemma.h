// Common parts of Gemma 2, 3 and 4.
#pragma once

#include "checkpoint/families/family.h"

namespace oscar {

// Reads query_pre_attn_scalar, attn_logit_softcapping and final_logit_softcapping (absent: the given caps; null: none).
// Sets the embedding scale to sqrt(hidden). InputError for use_bidirectional_attention.
void read_gemma(const Json& config, const std::string& where, double logit_cap, double final_cap, ModelConfig* out);

// Reads a soft cap. Absent: `absent`; null: 0, none; otherwise InputError unless it is a positive number.
double read_soft_cap(const Json& config, const char* key, const std::string& where, double absent);

Family gemma_family(const ModelConfig& config);

// Defaults that all share.
constexpr ConfigDefaults gemma_defaults(std::int64_t vocabulary, std::int64_t max_position) {
  return {.head_dim = 256,
          .query_heads = 8,
          .kv_heads = 4,
          .vocabulary = vocabulary,
          .max_position = max_position,
          .bos = 2,
          .eos = {1, -1, -1},
          .tied = true,
          .activation_key = "hidden_activation",
          .activation = "gelu_pytorch_tanh",
          .reads_attention_bias = true,
          .sliding = SlidingLayers::kPattern};
}

}  // namespace oscar
