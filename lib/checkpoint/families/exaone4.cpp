// EXAONE 4: norms of what branches add, none before; RMSNorm over each head of q and k. The 32B model has three sliding
// layers to each full one, which has no RoPE; without windows (1.2B) every layer has it.
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

void exaone4_config(const Json& config, const std::string& /*where*/, ModelConfig* out) {
  // A number in sliding_window takes RoPE from full layers, even where layer_types has no sliding ones.
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

extern const FamilyRow kExaone4;
const FamilyRow kExaone4 = {
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
