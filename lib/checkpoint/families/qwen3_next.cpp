// Qwen3-Next (80B-A3B): gated delta nets in three of four layers, with projections in two tensors grouped by key head.
// Experts beside a weighted shared expert; dense layers as in Qwen3-MoE.
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/gated_delta.h"

namespace oscar {
namespace {

void qwen3_next_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_gated_delta(config, where, out);
  read_experts(config, where, {.count = 512, .per_token = 10, .intermediate = 512}, out);
  out->experts.normalized = json_bool(config, "norm_topk_prob", where, true);
  read_sparse_layers(config, where, out);
  read_shared_size(config, where, 512, &out->experts);
}

Family qwen3_next_family(const ModelConfig& config) {
  Family family = gated_delta_family(config);
  family.linear_qkvz = "linear_attn.in_proj_qkvz.weight";
  family.linear_beta_decay = "linear_attn.in_proj_ba.weight";
  add_weighted_experts(family);
  return family;
}

constexpr ConfigDefaults qwen3_next_defaults() {
  ConfigDefaults defaults = gated_delta_defaults(2, 151936);
  defaults.intermediate = 5632;
  return defaults;
}

}  // namespace

extern const FamilyRow kQwen3Next = {
    .architecture = "Qwen3NextForCausalLM",
    .model_type = "qwen3_next",
    .defaults = qwen3_next_defaults(),
    .read_config = qwen3_next_config,
    .family = qwen3_next_family,
};

}  // namespace oscar
