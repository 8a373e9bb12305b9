// OLMo 3: OLMo 2 with three sliding-window layers per full layer. Only full layers have the scaled RoPE for long
// contexts.
#include "checkpoint/families/olmo.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

void olmo3_config(const Json& config, const std::string& where, ModelConfig* out) {
  const double theta = json_number(config, "rope_theta", where, 500000.0);
  parse_layered_rope(config, out->max_position, where, {.global = theta, .local = theta}, &out->rope, &out->local_rope);
  for (const std::int64_t window : out->sliding_window) {
    out->layer_rope.push_back(window > 0 ? LayerRope::kLocal : LayerRope::kGlobal);
  }
}

}  // namespace

extern const FamilyRow kOlmo3 = {
    .architecture = "Olmo3ForCausalLM",
    .model_type = "olmo3",
    .defaults = {.eos = {50279, -1, -1},
                 .rms_eps = 1e-5,
                 .reads_attention_bias = true,
                 .own_rope = true,
                 .qk_norm = true,
                 .sliding = SlidingLayers::kPattern,
                 .pattern = 4},
    .read_config = olmo3_config,
    .family = olmo_family,
};

}  // namespace oscar
