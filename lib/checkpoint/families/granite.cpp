// Granite 3 (dense): Llama's layers with numbers that multiply embeddings, attention logits, what branches add,
// and that divide the model's logits.
#include <cmath>

#include "base/errors.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

double multiplier(const Json& config, const char* key, const std::string& where) {
  const double value = json_number(config, key, where, 1.0);
  if (!std::isfinite(value) || value <= 0.0) {
    throw InputError(where + ": '" + key + "' is " + std::to_string(value) + ", expected a positive number");
  }
  return value;
}

void granite_config(const Json& config, const std::string& where, ModelConfig* out) {
  out->embedding_scale = multiplier(config, "embedding_multiplier", where);
  out->attention_scale = multiplier(config, "attention_multiplier", where);
  out->residual_scale = multiplier(config, "residual_multiplier", where);
  out->logit_scale = 1.0 / multiplier(config, "logits_scaling", where);
}

Family granite_family(const ModelConfig& config) {
  Family family;
  if (config.qkv_bias) family.add_qkv_bias();
  if (config.output_bias) family.add_output_bias();
  if (config.mlp_bias) family.add_mlp_bias();
  return family;
}

}  // namespace

extern const FamilyRow kGranite;
const FamilyRow kGranite = {
    .architecture = "GraniteForCausalLM",
    .model_type = "granite",
    .defaults = {.bos = 1, .eos = {2, -1, -1}, .reads_attention_bias = true, .reads_mlp_bias = true},
    .read_config = granite_config,
    .family = granite_family,
};

}  // namespace oscar
