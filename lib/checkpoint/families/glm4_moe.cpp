// GLM-4.5, 4.6 and 4.7: dense layers first, then experts by corrected sigmoid scores beside a shared expert. RoPE
// covers the first half of each head. q and k have norms only with use_qk_norm. o never has a bias.
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void glm4_moe_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_sigmoid_experts(config, where,
                       {.count = 128, .per_token = 8, .intermediate = 1408, .groups = {1, 1}, .scaling = 1.0}, out);
  read_dense_first(config, where, 1, out);
  out->qk_norm = json_bool(config, "use_qk_norm", where, false);
}

Family glm4_moe_family(const ModelConfig& config) {
  Family family;
  if (config.qk_norm) family.add_qk_norm();
  if (config.qkv_bias) family.add_qkv_bias();
  family.add_sigmoid_experts();
  return family;
}

}  // namespace

extern const FamilyRow kGlm4Moe = {
    .architecture = "Glm4MoeForCausalLM",
    .model_type = "glm4_moe",
    .defaults = {.kv_heads = 8,
                 .max_position = 131072,
                 .rms_eps = 1e-5,
                 .reads_attention_bias = true,
                 .output_bias = false,
                 .partial_rope = true,
                 .partial_rotary = 0.5},
    .read_config = glm4_moe_config,
    .family = glm4_moe_family,
};

}  // namespace oscar
