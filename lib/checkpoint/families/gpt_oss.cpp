// gpt-oss, with plain or MXFP4 experts: a sink logit per query head, windows in every other layer starting with the
// first, and YaRN. Every layer has experts with biases and a clamped gate.
#include <cmath>

#include "base/errors.h"
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

void gpt_oss_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_experts(config, where, {.count = 128, .per_token = 4, .intermediate = out->intermediate, .own_size = false},
               out);
  out->experts.gate_gain = json_number(config, "swiglu_alpha", where, 1.702);
  out->experts.gate_limit = json_number(config, "swiglu_limit", where, 7.0);
  if (!std::isfinite(out->experts.gate_gain) || !(out->experts.gate_limit > 0.0)) {
    throw InputError(where + ": 'swiglu_alpha' and 'swiglu_limit' must be numbers, the limit positive");
  }
  out->sink_logits = true;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (const auto it = config.find(key); it != config.end() && !it->is_null()) return;
  }
  Json yarn = config;  // for a config.json without RoPE keys
  yarn["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
                             {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
  out->rope = parse_rope(yarn, {.theta = 150000.0}, out->max_position, where);
}

Family gpt_oss_family(const ModelConfig& config) {
  Family family;
  family.pieces = {.norm = NormKind::kWide,
                   .router = RouterKind::kLargestFirst,
                   .gate = ExpertGate::kClamped,
                   .fused = FusedExperts::kInterleaved};
  family.add_biases(config);
  family.sinks = "self_attn.sinks";
  family.router = "mlp.router.weight";
  family.router_bias = "mlp.router.bias";
  family.experts_gate_up = "mlp.experts.gate_up_proj";
  family.experts_gate_up_bias = "mlp.experts.gate_up_proj_bias";
  family.experts_down = "mlp.experts.down_proj";
  family.experts_down_bias = "mlp.experts.down_proj_bias";
  return family;
}

}  // namespace

extern const FamilyRow kGptOss = {
    .architecture = "GptOssForCausalLM",
    .model_type = "gpt_oss",
    .defaults = {.head_dim = 64,
                 .kv_heads = 8,
                 .max_position = 131072,
                 .rms_eps = 1e-5,
                 .rope_theta = 150000.0,
                 .attention_bias = true,
                 .reads_attention_bias = true,
                 .sliding = SlidingLayers::kPattern,
                 .window = 128},
    .read_config = gpt_oss_config,
    .family = gpt_oss_family,
};

}  // namespace oscar
