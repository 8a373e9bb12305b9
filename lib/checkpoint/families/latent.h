// Common parts of families with latent attention (DeepSeek-V2 and V3, GLM-4.7-Flash).
#pragma once

#include "checkpoint/families/family.h"

namespace oscar {

struct LatentDefaults {
  std::int64_t rank, query_rank, nope_dim, rope_dim, value_dim;
};

// Reads kv_lora_rank, q_lora_rank (null: one projection), qk_nope_head_dim, qk_rope_head_dim, v_head_dim and
// rope_interleave. The softmax scale is (qk_nope_head_dim + qk_rope_head_dim)^-1/2; YaRN with mscale_all_dim multiplies
// it by the square of its temperature. The model then has one KV head (LatentAttention in model_config.h). InputError
// for sizes out of range.
void read_latent(const Json& config, const std::string& where, const LatentDefaults& defaults, ModelConfig* out);

// Layer variants and tensor names: one latent for keys and values; without experts.
Family latent_family(const ModelConfig& config);
// The same with experts by corrected sigmoid scores.
Family sigmoid_latent_family(const ModelConfig& config);

}  // namespace oscar
