// Mixtral: Mistral's attention and experts in every layer, with intermediate_size as their size.
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void mixtral_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_experts(config, where, {.count = 8, .per_token = 2, .intermediate = out->intermediate, .own_size = false}, out);
}

Family mixtral_family(const ModelConfig&) {
  Family family;
  family.pieces.rounded_weights = false;
  family.add_mixtral_experts();
  return family;
}

}  // namespace

extern const FamilyRow kMixtral = {
    .architecture = "MixtralForCausalLM",
    .model_type = "mixtral",
    .defaults = {.kv_heads = 8,
                 .max_position = 131072,
                 .bos = 1,
                 .eos = {2, -1, -1},
                 .rms_eps = 1e-5,
                 .rope_theta = 1e6,
                 .sliding = SlidingLayers::kEveryLayer,
                 .window = 0},
    .read_config = mixtral_config,
    .family = mixtral_family,
};

}  // namespace oscar
