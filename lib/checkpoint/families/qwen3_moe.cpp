// Qwen3-MoE (Qwen3-30B-A3B, 235B-A22B, Coder): Qwen3's attention; experts in all layers but those of mlp_only_layers
// and those that decoder_sparse_step leaves out, which have Qwen3's MLP.
#include "base/errors.h"
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void qwen3_moe_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_experts(config, where, {.count = 128, .per_token = 8, .intermediate = 768}, out);
  out->experts.normalised = json_bool(config, "norm_topk_prob", where, false);
  const std::int64_t step = json_int(config, "decoder_sparse_step", where, 1);
  if (step < 1)
    throw InputError(where + ": 'decoder_sparse_step' is " + std::to_string(step) + ", expected at least 1");
  std::vector<bool>& sparse = out->experts.layers;
  for (std::int64_t i = 0; i < out->layers; ++i) sparse[static_cast<std::size_t>(i)] = (i + 1) % step == 0;
  const auto dense = config.find("mlp_only_layers");
  if (dense == config.end() || dense->is_null()) return;
  if (!dense->is_array()) throw InputError(where + ": 'mlp_only_layers' must be a list of layer numbers");
  for (const Json& item : *dense) {
    if (!item.is_number_integer()) throw InputError(where + ": 'mlp_only_layers' must be a list of layer numbers");
    const auto layer = item.get<std::int64_t>();
    if (layer >= 0 && layer < out->layers) sparse[static_cast<std::size_t>(layer)] = false;
  }
}

Family qwen3_moe_family(const ModelConfig& config) {
  Family family;
  family.add_qk_norm();
  family.add_biases(config);
  family.add_experts();
  return family;
}

}  // namespace

extern const FamilyRow kQwen3Moe;
const FamilyRow kQwen3Moe = {
    .architecture = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .defaults = {.kv_heads = 4,
                 .max_position = 32768,
                 .reads_attention_bias = true,
                 .qk_norm = true,
                 .sliding = SlidingLayers::kSwitched},
    .read_config = qwen3_moe_config,
    .family = qwen3_moe_family,
};

}  // namespace oscar
