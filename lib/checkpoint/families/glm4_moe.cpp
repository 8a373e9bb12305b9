// GLM-4.5, 4.6 and 4.7: dense layers first, then experts by corrected sigmoid scores beside a shared expert. RoPE
// covers the first half of each head. q and k have norms only with use_qk_norm. o never has a bias.
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void glm4_moe_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_experts(config, where, {.count = 128, .per_token = 8, .intermediate = 1408, .count_key = "n_routed_experts"},
               out);
  ExpertConfig& e = out->experts;
  read_expert_groups(config, where, {1, 1}, &e);
  e.normalized = json_bool(config, "norm_topk_prob", where, true);
  e.least_sum = 1e-20;
  e.scaling = json_number(config, "routed_scaling_factor", where, 1.0);
  read_shared_experts(config, "n_shared_experts", where, 1, &e);
  const std::int64_t dense = json_int(config, "first_k_dense_replace", where, 1);
  for (std::int64_t i = 0; i < out->layers; ++i) e.layers[static_cast<std::size_t>(i)] = i >= dense;
  out->qk_norm = json_bool(config, "use_qk_norm", where, false);
}

Family glm4_moe_family(const ModelConfig& config) {
  Family family;
  family.pieces.router = RouterKind::kSigmoid;
  family.pieces.rounded_weights = false;
  family.pieces.wide_router = true;
  if (config.qk_norm) family.add_qk_norm();
  if (config.qkv_bias) family.add_qkv_bias();
  family.router_correction = "mlp.gate.e_score_correction_bias";
  family.add_experts();
  family.add_shared_expert();
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
