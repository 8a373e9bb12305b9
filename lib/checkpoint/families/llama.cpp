// Llama 2, 3, 3.1 and 3.2, and many other models published under this architecture.
#include "checkpoint/families/family.h"

namespace oscar {

extern const FamilyRow kLlama = {
    .architecture = "LlamaForCausalLM",
    .model_type = "llama",
    .defaults = {.bos = 1, .eos = {2, -1, -1}, .reads_attention_bias = true, .reads_mlp_bias = true},
    .family = llama_layers,  // attention_bias adds a bias to all four projections
};

}  // namespace oscar
