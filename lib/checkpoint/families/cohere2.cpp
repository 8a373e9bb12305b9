// Cohere 2 (Command R7B, Command A): attention and MLP read one LayerNorm, and their outputs are added together. Three
// sliding-window layers with interleaved RoPE alternate with one full layer without RoPE. The model's logits are
// scaled.
#include "base/json.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void cohere2_config(const Json& config, const std::string& where, ModelConfig* out) {
  out->logit_scale = require_positive(json_number(config, "logit_scale", where, 0.0625), "logit_scale", where);
  out->rope.interleaved = true;
  for (const std::int64_t window : out->sliding_window) {
    out->layer_rope.push_back(window > 0 ? LayerRope::kGlobal : LayerRope::kNone);
  }
}

Family cohere2_family(const ModelConfig& config) {
  Family family;
  family.pieces.norm = NormKind::kCentered;
  family.pieces.parallel = true;
  family.mlp_norm.clear();
  family.add_biases(config);
  return family;
}

}  // namespace

extern const FamilyRow kCohere2 = {
    .architecture = "Cohere2ForCausalLM",
    .model_type = "cohere2",
    .defaults = {.max_position = 8192,
                 .bos = 5,
                 .eos = {255001, -1, -1},
                 .rms_eps = 1e-5,
                 .eps_key = "layer_norm_eps",
                 .tied = true,
                 .reads_attention_bias = true,
                 .sliding = SlidingLayers::kPattern,
                 .pattern = 4},
    .read_config = cohere2_config,
    .family = cohere2_family,
};

}  // namespace oscar
