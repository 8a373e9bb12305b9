// OLMo 2: no norms before the branches, only of what they add; RMSNorm over the whole projections of q and k.
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

Family olmo2_family(const ModelConfig& config) {
  Family family;
  family.pieces.norm = NormKind::kWide;
  family.input_norm.clear();
  family.attention_out_norm = "post_attention_layernorm.weight";
  family.mlp_norm.clear();
  family.mlp_out_norm = "post_feedforward_layernorm.weight";
  family.add_qk_norm();
  family.whole_qk_norm = true;
  if (config.qkv_bias) family.add_qkv_bias();
  if (config.output_bias) family.add_output_bias();
  return family;
}

}  // namespace

extern const FamilyRow kOlmo2;
const FamilyRow kOlmo2 = {
    .architecture = "Olmo2ForCausalLM",
    .model_type = "olmo2",
    .defaults = {.eos = {50279, -1, -1}, .rms_eps = 1e-5, .reads_attention_bias = true, .qk_norm = true},
    .family = olmo2_family,
};

}  // namespace oscar
