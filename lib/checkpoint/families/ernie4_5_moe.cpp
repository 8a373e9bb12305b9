// ERNIE 4.5 with experts (21B-A3B, 300B-A47B): softmax over all experts, a correction for the choice, and a shared
// expert. moe_layer_start_index, moe_layer_end_index and moe_layer_interval select the dense layers.
#include <cmath>

#include "base/errors.h"
#include "checkpoint/families/ernie.h"
#include "checkpoint/families/experts_config.h"

namespace oscar {
namespace {

void ernie4_5_moe_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_ernie(config, where, out);
  if (out->mlp_bias) {
    throw InputError(where +
                     ": 'use_bias' is not supported for ERNIE 4.5 with experts, whose published models have no biases");
  }
  read_experts(
      config, where,
      {.count = 64, .per_token = 6, .intermediate = 1536, .count_key = "moe_num_experts", .per_token_key = "moe_k"},
      out);
  ExpertConfig& e = out->experts;
  e.least_sum = json_number(config, "moe_norm_min", where, 1e-12);
  if (!std::isfinite(e.least_sum) || e.least_sum < 0.0) {
    throw InputError(where + ": 'moe_norm_min' must be a number of at least 0");
  }
  read_shared_experts(config, "moe_num_shared_experts", where, 2, &e);
  const std::int64_t first = json_int(config, "moe_layer_start_index", where, 1);
  const std::int64_t end = json_int(config, "moe_layer_end_index", where, -1);
  const std::int64_t last = end == -1 ? out->layers - 1 : end;
  const std::int64_t step = json_int(config, "moe_layer_interval", where, 1);
  if (step < 1) throw InputError(where + ": 'moe_layer_interval' is " + std::to_string(step) + ", expected at least 1");
  for (std::int64_t i = 0; i < out->layers; ++i) {
    e.layers[static_cast<std::size_t>(i)] = (i + 1) % step == 0 && i >= first && i <= last;
  }
}

Family ernie4_5_moe_family(const ModelConfig& config) {
  Family family = llama_layers(config);
  family.pieces.wide_router = true;
  family.router_correction = "mlp.moe_statics.e_score_correction_bias";
  family.experts_router_correction = "mlp.gate.moe_statics.e_score_correction_bias";
  family.correction_row = true;
  family.add_experts();
  family.add_shared_expert();
  return family;
}

}  // namespace

extern const FamilyRow kErnie4_5Moe = {
    .architecture = "Ernie4_5_MoeForCausalLM",
    .model_type = "ernie4_5_moe",
    .defaults = ernie_defaults(0, 4),
    .read_config = ernie4_5_moe_config,
    .family = ernie4_5_moe_family,
};

}  // namespace oscar
