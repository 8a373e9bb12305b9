// Phi-3 and Phi-4 (also mini): q, k and v in one tensor, gate and up in one. Phi-4-mini applies RoPE to part of the
// head; 128K models have factors by length (longrope).
#include "base/errors.h"
#include "checkpoint/families/family.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

// Older files call longrope "su" or "yarn"; these models have no other type.
void phi3_config(const Json& config, const std::string& where, ModelConfig* out) {
  Json named = config;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!json_member(named, key).is_object()) continue;
    for (const char* type : {"type", "rope_type"}) {
      const Json& value = json_member(named[key], type);
      if (value == "su" || value == "yarn") named[key][type] = "longrope";
    }
  }
  out->rope = parse_rope(named, {.theta = 10000.0, .reads_partial = true}, out->max_position, where);
  if (out->rope.type == RopeType::kDefault || out->rope.type == RopeType::kLongRope) return;
  throw InputError(where + ": Phi-3 has a rope type other than 'default' and 'longrope', which are supported");
}

Family phi3_family(const ModelConfig&) {
  Family family;
  family.q.clear(), family.k.clear(), family.v.clear();
  family.qkv = "self_attn.qkv_proj.weight";
  family.fuse_gate_up();
  return family;
}

}  // namespace

extern const FamilyRow kPhi3 = {
    .architecture = "Phi3ForCausalLM",
    .model_type = "phi3",
    .defaults = {.max_position = 4096,
                 .bos = 1,
                 .eos = {32000, -1, -1},
                 .rms_eps = 1e-5,
                 .own_rope = true,
                 .sliding = SlidingLayers::kEveryLayer,
                 .window = 0},
    .read_config = phi3_config,
    .family = phi3_family,
};

}  // namespace oscar
