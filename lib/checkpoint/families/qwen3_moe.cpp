// Qwen3-MoE (Qwen3-30B-A3B, 235B-A22B, Coder): Qwen3's attention with experts. Layers in mlp_only_layers, or skipped by
// decoder_sparse_step, have Qwen3's MLP.
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void qwen3_moe_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_experts(config, where, {.count = 128, .per_token = 8, .intermediate = 768}, out);
  out->experts.normalized = json_bool(config, "norm_topk_prob", where, false);
  read_sparse_layers(config, where, out);
}

Family qwen3_moe_family(const ModelConfig& config) {
  Family family;
  family.add_qk_norm();
  family.add_biases(config);
  family.add_experts();
  return family;
}

}  // namespace

extern const FamilyRow kQwen3Moe = {
    .architecture = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .defaults = {.kv_heads = 4,
                 .max_position = 32768,
                 .reads_attention_bias = true,
                 .qk_norm = true,
                 .sliding = SlidingLayers::kSwitched},
    .read_config = qwen3_moe_config,
    .family = qwen3_moe_family,
};

}  // namespace oscar
