// GLM-4 (dense, 0414): interleaved RoPE over the first half of each head, norms before and after both branches, gate
// and up in one tensor. o never has a bias.
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void glm4_config(const Json& /*config*/, const std::string& /*where*/, ModelConfig* out) {
  out->rope.interleaved = true;
}

Family glm4_family(const ModelConfig& config) {
  Family family;
  family.attention_out_norm = "post_self_attn_layernorm.weight";
  family.mlp_out_norm = "post_mlp_layernorm.weight";
  family.fuse_gate_up();
  if (config.qkv_bias) family.add_qkv_bias();
  return family;
}

}  // namespace

extern const FamilyRow kGlm4 = {
    .architecture = "Glm4ForCausalLM",
    .model_type = "glm4",
    .defaults = {.head_dim = 128,
                 .kv_heads = 2,
                 .max_position = 131072,
                 .eos = {151329, 151336, 151338},
                 .rms_eps = 0.00000015625,
                 .attention_bias = true,
                 .reads_attention_bias = true,
                 .output_bias = false,
                 .partial_rope = true,
                 .partial_rotary = 0.5},
    .read_config = glm4_config,
    .family = glm4_family,
};

}  // namespace oscar
