#include <stdexcept>

#include "checkpoint/checkpoint.h"
#include "checkpoint/families/family.h"

namespace oscar {

std::string Family::layer_tensor(std::int64_t layer, const std::string& name) const {
  return layer_prefix + std::to_string(layer) + "." + name;
}

void Family::add_qkv_bias() {
  q_bias = "self_attn.q_proj.bias";
  k_bias = "self_attn.k_proj.bias";
  v_bias = "self_attn.v_proj.bias";
}

void Family::add_output_bias() { o_bias = "self_attn.o_proj.bias"; }

void Family::add_biases(const ModelConfig& config) {
  if (config.qkv_bias) add_qkv_bias();
  if (config.output_bias) add_output_bias();
  if (!config.mlp_bias) return;
  gate_bias = "mlp.gate_proj.bias";
  up_bias = "mlp.up_proj.bias";
  down_bias = "mlp.down_proj.bias";
}

void Family::add_qk_norm() {
  q_norm = "self_attn.q_norm.weight";
  k_norm = "self_attn.k_norm.weight";
}

void Family::fuse_gate_up() {
  gate.clear(), up.clear();
  gate_up = "mlp.gate_up_proj.weight";
}

void Family::add_experts() {
  router = "mlp.gate.weight";
  expert_gate = "mlp.experts.{}.gate_proj.weight";
  expert_up = "mlp.experts.{}.up_proj.weight";
  expert_down = "mlp.experts.{}.down_proj.weight";
  experts_gate_up = "mlp.experts.gate_up_proj";
  experts_down = "mlp.experts.down_proj";
}

void Family::add_mixtral_experts() {
  router = "block_sparse_moe.gate.weight";
  expert_gate = "block_sparse_moe.experts.{}.w1.weight";
  expert_up = "block_sparse_moe.experts.{}.w3.weight";
  expert_down = "block_sparse_moe.experts.{}.w2.weight";
  experts_gate_up = "mlp.experts.gate_up_proj";
  experts_down = "mlp.experts.down_proj";
  experts_router = "mlp.gate.weight";
}

void Family::add_shared_expert() {
  shared_gate = "mlp.shared_experts.gate_proj.weight";
  shared_up = "mlp.shared_experts.up_proj.weight";
  shared_down = "mlp.shared_experts.down_proj.weight";
}

void Family::add_sigmoid_experts() {
  pieces.router = RouterKind::kSigmoid;
  pieces.rounded_weights = false;
  pieces.wide_router = true;
  router_correction = "mlp.gate.e_score_correction_bias";
  add_experts();
  add_shared_expert();
}

Family llama_layers(const ModelConfig& config) {
  Family family;
  family.add_biases(config);
  return family;
}

Family family_of(const ModelConfig& config) {
  for (const FamilyRow* row : family_rows()) {
    if (config.architecture == row->architecture) return row->family(config);
  }
  throw std::invalid_argument("family_of: '" + config.architecture + "' did not come from parse_model_config()");
}

Family family_of(const Checkpoint& checkpoint) {
  Family family = family_of(checkpoint.config());
  if (!checkpoint.config().text_tower) return family;
  // transformers 4 and files on disk: language_model.model.*, language_model.lm_head; 5: model.language_model.*.
  const bool inside = checkpoint.find("model.language_model." + family.embedding.substr(6)) != nullptr;
  for (std::string* name : {&family.embedding, &family.final_norm, &family.layer_prefix, &family.layer_embedding,
                            &family.layer_projection, &family.layer_projection_norm}) {
    if (name->empty()) continue;
    *name = inside ? "model.language_model." + name->substr(6) : "language_model." + *name;
  }
  if (!inside && checkpoint.find("language_model." + family.head) != nullptr) {
    family.head = "language_model." + family.head;
  }
  return family;
}

Json text_config(const Json& config, const FamilyRow& row) {
  const auto text = config.find("text_config");
  if (row.wrapper == nullptr || text == config.end() || !text->is_object()) return config;
  Json merged = *text;
  for (const auto& [key, value] : config.items()) {
    if (key != "model_type" && key != "architectures" && !merged.contains(key)) merged[key] = value;
  }
  return merged;
}

}  // namespace oscar
