// Qwen3 (dense): RMSNorm over each head of q and k before RoPE; biases only with attention_bias.
#include "model/families/family.h"

namespace oscar {

Family qwen3_family(const ModelConfig& config) {
  Family family;
  family.q_norm = "self_attn.q_norm.weight";
  family.k_norm = "self_attn.k_norm.weight";
  if (config.qkv_bias) family.add_qkv_bias();
  if (config.output_bias) family.add_output_bias();
  return family;
}

}  // namespace oscar
