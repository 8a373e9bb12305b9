// EXAONE 4: norms on the branches' outputs, none on their inputs; RMSNorm over each head of q and k. In the 32B model,
// three sliding-window layers alternate with one full layer, which has no RoPE. Without windows (1.2B), every layer has
// RoPE.
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void exaone4_config(const Json& config, const std::string& /*where*/, ModelConfig* out) {
  // A number in sliding_window removes RoPE from full layers, even if layer_types has no sliding-window layers.
  const auto window = config.find("sliding_window");
  if (window != config.end() && window->is_null()) return;
  for (const std::int64_t width : out->sliding_window) {
    out->layer_rope.push_back(width > 0 ? LayerRope::kGlobal : LayerRope::kNone);
  }
}

Family exaone4_family(const ModelConfig&) {
  Family family;
  family.input_norm.clear();
  family.attention_out_norm = "post_attention_layernorm.weight";
  family.mlp_norm.clear();
  family.mlp_out_norm = "post_feedforward_layernorm.weight";
  family.add_qk_norm();
  return family;
}

}  // namespace

extern const FamilyRow kExaone4 = {
    .architecture = "Exaone4ForCausalLM",
    .model_type = "exaone4",
    .defaults = {.kv_heads = 32,
                 .bos = 0,
                 .eos = {2, -1, -1},
                 .rms_eps = 1e-5,
                 .qk_norm = true,
                 .sliding = SlidingLayers::kPattern,
                 .pattern = 4},
    .read_config = exaone4_config,
    .family = exaone4_family,
};

}  // namespace oscar
