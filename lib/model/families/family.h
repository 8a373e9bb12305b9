// What distinguishes one supported architecture: the names of its tensors and which optional ones it has.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace oscar {

// Tensor names as saved by transformers. Layer names follow `layer_prefix` + layer index + "."; an empty name means
// that the architecture has no such tensor.
struct Family {
  std::string embedding = "model.embed_tokens.weight";
  std::string final_norm = "model.norm.weight";
  std::string head = "lm_head.weight";
  std::string layer_prefix = "model.layers.";

  std::string input_norm = "input_layernorm.weight";
  std::string post_attention_norm = "post_attention_layernorm.weight";
  std::string q = "self_attn.q_proj.weight", q_bias;
  std::string k = "self_attn.k_proj.weight", k_bias;
  std::string v = "self_attn.v_proj.weight", v_bias;
  std::string o = "self_attn.o_proj.weight", o_bias;
  std::string q_norm, k_norm;
  std::string gate = "mlp.gate_proj.weight", gate_bias;
  std::string up = "mlp.up_proj.weight", up_bias;
  std::string down = "mlp.down_proj.weight", down_bias;

  std::string layer_tensor(std::int64_t layer, const std::string& name) const;

  // The biases that config.json can switch on, under their usual names.
  void add_qkv_bias();
  void add_output_bias();
  void add_mlp_bias();
};

// One for each supported architecture.
Family llama_family(const ModelConfig& config);
Family mistral_family(const ModelConfig& config);
Family qwen2_family(const ModelConfig& config);
Family qwen3_family(const ModelConfig& config);

// By config.architecture; InputError for any other (the message lists the supported ones).
Family family_of(const ModelConfig& config);

}  // namespace oscar
