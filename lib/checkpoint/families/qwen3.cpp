// Qwen3 (dense): RMSNorm over each head of q and k before RoPE; biases only with attention_bias.
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

Family qwen3_family(const ModelConfig& config) {
  Family family;
  family.add_qk_norm();
  family.add_biases(config);
  return family;
}

}  // namespace

extern const FamilyRow kQwen3 = {
    .architecture = "Qwen3ForCausalLM",
    .model_type = "qwen3",
    .defaults = {.head_dim = 128,
                 .kv_heads = 32,
                 .max_position = 32768,
                 .reads_attention_bias = true,
                 .qk_norm = true,
                 .sliding = SlidingLayers::kByLayer},
    .family = qwen3_family,
};

}  // namespace oscar
