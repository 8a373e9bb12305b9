// Mistral: Llama's names, never a bias; one sliding window for all layers, or none. Also in the multimodal wrapper of
// Mistral Small 3.1 and 3.2.
#include "checkpoint/families/family.h"

namespace oscar {

extern const FamilyRow kMistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .wrapper = "Mistral3ForConditionalGeneration",
    .wrapper_type = "mistral3",
    .wrapper_ties = true,
    .defaults =
        {.kv_heads = 8, .max_position = 131072, .bos = 1, .eos = {2, -1, -1}, .sliding = SlidingLayers::kEveryLayer},
    .family = [](const ModelConfig&) { return Family{}; },
};

}  // namespace oscar
