// OLMo 2: norms on the branches' outputs, none on their inputs; RMSNorm over the full projections of q and k.
#include "checkpoint/families/olmo.h"

namespace oscar {

Family olmo_family(const ModelConfig& config) {
  Family family;
  family.pieces.norm = NormKind::kWide;
  family.input_norm.clear();
  family.attention_out_norm = "post_attention_layernorm.weight";
  family.mlp_norm.clear();
  family.mlp_out_norm = "post_feedforward_layernorm.weight";
  family.add_qk_norm();
  family.whole_qk_norm = true;
  family.add_biases(config);
  return family;
}

extern const FamilyRow kOlmo2 = {
    .architecture = "Olmo2ForCausalLM",
    .model_type = "olmo2",
    .defaults = {.eos = {50279, -1, -1}, .rms_eps = 1e-5, .reads_attention_bias = true, .qk_norm = true},
    .family = olmo_family,
};

}  // namespace oscar
