// Qwen3.5, dense and with experts: Qwen3-Next's layers, with one tensor per projection of a gated delta net. Published
// models are multimodal wrappers; for text, their RoPE in three sections equals plain RoPE.
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/gated_delta.h"

namespace oscar {
namespace {

void qwen3_5_moe_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_gated_delta(config, where, out);
  read_experts(config, where, {.count = 256, .per_token = 8, .intermediate = 512}, out);
  read_shared_size(config, where, 512, &out->experts);
}

Family qwen3_5_family(const ModelConfig& config) {
  Family family = gated_delta_family(config);
  family.linear_qkv = "linear_attn.in_proj_qkv.weight";
  family.linear_z = "linear_attn.in_proj_z.weight";
  family.linear_beta = "linear_attn.in_proj_b.weight";
  family.linear_decay = "linear_attn.in_proj_a.weight";
  return family;
}

Family qwen3_5_moe_family(const ModelConfig& config) {
  Family family = qwen3_5_family(config);
  add_weighted_experts(family);
  return family;
}

constexpr ConfigDefaults qwen3_5_defaults(std::int64_t kv_heads, std::int64_t intermediate) {
  ConfigDefaults defaults = gated_delta_defaults(kv_heads, 248320);
  defaults.intermediate = intermediate;
  return defaults;
}

}  // namespace

extern const FamilyRow kQwen3_5 = {
    .architecture = "Qwen3_5ForCausalLM",
    .model_type = "qwen3_5_text",
    .wrapper = "Qwen3_5ForConditionalGeneration",
    .wrapper_type = "qwen3_5",
    .defaults = qwen3_5_defaults(4, 12288),
    .read_config = read_gated_delta,
    .family = qwen3_5_family,
};
extern const FamilyRow kQwen3_5Moe = {
    .architecture = "Qwen3_5MoeForCausalLM",
    .model_type = "qwen3_5_moe_text",
    .wrapper = "Qwen3_5MoeForConditionalGeneration",
    .wrapper_type = "qwen3_5_moe",
    .defaults = qwen3_5_defaults(2, 512),  // no layer has a dense MLP, and the key is absent
    .read_config = qwen3_5_moe_config,
    .family = qwen3_5_moe_family,
};

}  // namespace oscar
