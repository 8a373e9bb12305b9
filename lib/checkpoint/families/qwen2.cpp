// Qwen2 and Qwen2.5: q, k and v always have a bias, o never does.
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

Family qwen2_family(const ModelConfig&) {
  Family family;
  family.add_qkv_bias();
  return family;
}

}  // namespace

extern const FamilyRow kQwen2 = {
    .architecture = "Qwen2ForCausalLM",
    .model_type = "qwen2",
    .defaults = {.kv_heads = 32, .max_position = 32768, .qkv_bias = true, .sliding = SlidingLayers::kByLayer},
    .family = qwen2_family,
};

}  // namespace oscar
