// Granite 3 (dense): Llama's layers with factors for embeddings, attention logits and branch outputs, and a divisor of
// the model's logits.
#include "base/json.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

double multiplier(const Json& config, const char* key, const std::string& where) {
  return require_positive(json_number(config, key, where, 1.0), key, where);
}

void granite_config(const Json& config, const std::string& where, ModelConfig* out) {
  out->embedding_scale = multiplier(config, "embedding_multiplier", where);
  out->attention_scale = multiplier(config, "attention_multiplier", where);
  out->residual_scale = multiplier(config, "residual_multiplier", where);
  out->logit_scale = 1.0 / multiplier(config, "logits_scaling", where);
}

}  // namespace

extern const FamilyRow kGranite = {
    .architecture = "GraniteForCausalLM",
    .model_type = "granite",
    .defaults = {.bos = 1, .eos = {2, -1, -1}, .reads_attention_bias = true, .reads_mlp_bias = true},
    .read_config = granite_config,
    .family = llama_layers,
};

}  // namespace oscar
