// Gemma 3, text: Gemma 2's norms and RMSNorm over each head of q and k. Five sliding-window layers with a small RoPE
// base alternate with one global layer. Also the text model in the multimodal wrapper of the 4B, 12B and 27B models.
#include "checkpoint/families/gemma.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

void gemma3_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_gemma(config, where, 0.0, 0.0, out);
  parse_layered_rope(config, out->max_position, where, {.global = 1e6, .local = 1e4}, &out->rope, &out->local_rope);
  // The layer type determines which layers are local, and each sliding-window layer has a window.
  for (const std::int64_t window : out->sliding_window) {
    out->layer_rope.push_back(window > 0 ? LayerRope::kLocal : LayerRope::kGlobal);
  }
}

constexpr ConfigDefaults gemma3_defaults() {
  ConfigDefaults defaults = gemma_defaults(262208, 131072);
  defaults.own_rope = true;
  defaults.qk_norm = true;
  defaults.pattern = 6;
  return defaults;
}

}  // namespace

extern const FamilyRow kGemma3 = {
    .architecture = "Gemma3ForCausalLM",
    .model_type = "gemma3_text",
    .wrapper = "Gemma3ForConditionalGeneration",
    .wrapper_type = "gemma3",
    .wrapper_ties = true,
    .defaults = gemma3_defaults(),
    .read_config = gemma3_config,
    .family = gemma_family,
};

}  // namespace oscar
