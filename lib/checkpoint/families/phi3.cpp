// Phi-3 and Phi-4 (also mini): q, k and v in one tensor, gate and up in one; RoPE over a part of the head in
// Phi-4-mini, and with factors by length (longrope) in models of 128K.
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

Family phi3_family(const ModelConfig&) {
  Family family;
  family.q.clear(), family.k.clear(), family.v.clear();
  family.qkv = "self_attn.qkv_proj.weight";
  family.fuse_gate_up();
  return family;
}

}  // namespace

extern const FamilyRow kPhi3;
const FamilyRow kPhi3 = {
    .architecture = "Phi3ForCausalLM",
    .model_type = "phi3",
    .defaults = {.max_position = 4096,
                 .bos = 1,
                 .eos = {32000, -1, -1},
                 .rms_eps = 1e-5,
                 .partial_rope = true,
                 .sliding = SlidingLayers::kEveryLayer,
                 .window = 0},
    .family = phi3_family,
};

}  // namespace oscar
