// Mistral: Llama's names, never a bias; one sliding window for all layers, or none.
#include "checkpoint/families/family.h"

namespace oscar {

extern const FamilyRow kMistral;
const FamilyRow kMistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .defaults =
        {.kv_heads = 8, .max_position = 131072, .bos = 1, .eos = {2, -1, -1}, .sliding = SlidingLayers::kEveryLayer},
    .family = [](const ModelConfig&) { return Family{}; },
};

}  // namespace oscar
