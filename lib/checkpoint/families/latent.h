// Common parts of families with latent attention (DeepSeek-V2 and V3, GLM-4.7-Flash).
#pragma once

#include "checkpoint/families/family.h"

namespace oscar {

struct LatentDefaults {
  std::int64_t rank, query_rank, nope_dim, rotated, value_dim;
};

// Reads kv_lora_rank, q_lora_rank (null: one projection), qk_nope_head_dim, qk_rope_head_dim and v_head_dim. The
// softmax scale is (qk_nope_head_dim + qk_rope_head_dim)^-1/2; YaRN with mscale_all_dim multiplies it by the square of
// its temperature. The model then has one KV head (LatentAttention in model_config.h). InputError for sizes out of
// range.
void read_latent(const Json& config, const std::string& where, const LatentDefaults& defaults, ModelConfig* out);

// Dense layers come first; layer first_k_dense_replace is the first with experts. InputError unless moe_layer_freq is
// 1.
void read_dense_first(const Json& config, const std::string& where, std::int64_t dense, ModelConfig* out);

// Experts selected by corrected sigmoid scores from the best groups, beside shared experts (DeepSeek-V3,
// arXiv:2412.19437, section 2.1.2), and rope_interleave. InputError as in read_experts(), and for another scoring_func
// or topk_method.
struct SigmoidExperts {
  std::int64_t count, per_token, intermediate, groups, groups_chosen;
  double scaling;
};
void read_sigmoid_experts(const Json& config, const std::string& where, const SigmoidExperts& defaults,
                          ModelConfig* out);

// For values that the family fixes in code: InputError unless the key is absent, null or `expected`.
void require_word(const Json& config, const char* key, const std::string& where, const std::string& expected);

// Layer variants and tensor names: one latent for keys and values, experts beside shared ones, a router in FP32.
Family latent_family(const ModelConfig& config);
// The same with corrected sigmoid scores.
Family sigmoid_latent_family(const ModelConfig& config);

}  // namespace oscar
