#include "checkpoint/families/latent.h"

#include <cmath>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_range.h"
#include "checkpoint/families/experts_config.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostDim = 4096;

std::int64_t size_or(const Json& config, const char* key, const std::string& where, std::int64_t fallback) {
  return config.contains(key) ? json_int_within(config, key, where, 1, kMostDim) : fallback;
}

// With mscale_all_dim, DeepSeek trained its softmax with the temperature of YaRN. RoPE's own factor is separate.
double temperature(const Json& config, const RopeConfig& rope, const std::string& where) {
  if (rope.type != RopeType::kYarn) return 1.0;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.find(key);
    if (found == config.end() || !found->is_object() || found->empty()) continue;
    const double mscale = json_number(*found, "mscale_all_dim", where, 0.0);
    return rope.factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  }
  return 1.0;
}

}  // namespace

void read_latent(const Json& config, const std::string& where, const LatentDefaults& defaults, ModelConfig* out) {
  LatentAttention& l = out->latent;
  l.rank = size_or(config, "kv_lora_rank", where, defaults.rank);
  l.rotated = size_or(config, "qk_rope_head_dim", where, defaults.rotated);
  l.nope_dim = size_or(config, "qk_nope_head_dim", where, defaults.nope_dim);
  l.value_dim = size_or(config, "v_head_dim", where, defaults.value_dim);
  const auto rank = config.find("q_lora_rank");
  const bool one = rank != config.end() && rank->is_null();
  l.query_rank = one                    ? 0
                 : rank == config.end() ? defaults.query_rank
                                        : json_int_within(config, "q_lora_rank", where, 1, std::int64_t{1} << 20);
  if (l.rotated % 2 != 0 || l.rank + l.rotated > kMostDim) {
    throw InputError(where + ": 'kv_lora_rank' is " + std::to_string(l.rank) + " and 'qk_rope_head_dim' " +
                     std::to_string(l.rotated) + ", expected an even number of rotated channels and at most " +
                     std::to_string(kMostDim) + " together");
  }
  out->kv_heads = 1;
  out->head_dim = l.rank + l.rotated;
  const double factor = temperature(config, out->rope, where);
  out->attention_scale = factor * factor / std::sqrt(static_cast<double>(l.query_dim()));
  if (!(out->attention_scale > 0.0 && out->attention_scale < 1e6)) {
    throw InputError(where + ": 'mscale_all_dim' makes the scale of the softmax " +
                     std::to_string(out->attention_scale) + ", expected a positive number");
  }
}

void read_dense_first(const Json& config, const std::string& where, std::int64_t dense, ModelConfig* out) {
  const std::int64_t first = json_int(config, "first_k_dense_replace", where, dense);
  if (const std::int64_t step = json_int(config, "moe_layer_freq", where, 1); step != 1) {
    throw InputError(where + ": 'moe_layer_freq' is " + std::to_string(step) + ", but only 1 is supported");
  }
  for (std::int64_t i = 0; i < out->layers; ++i) out->experts.layers[static_cast<std::size_t>(i)] = i >= first;
}

void read_sigmoid_experts(const Json& config, const std::string& where, const SigmoidExperts& defaults,
                          ModelConfig* out) {
  out->rope.interleaved = json_bool(config, "rope_interleave", where, true);
  read_experts(config, where,
               {.count = defaults.count,
                .per_token = defaults.per_token,
                .intermediate = defaults.intermediate,
                .count_key = "n_routed_experts"},
               out);
  ExpertConfig& e = out->experts;
  require_word(config, "scoring_func", where, "sigmoid");
  require_word(config, "topk_method", where, "noaux_tc");
  read_expert_groups(config, where, {defaults.groups, defaults.groups_chosen}, &e);
  e.normalized = json_bool(config, "norm_topk_prob", where, true);
  e.least_sum = 1e-20;
  e.scaling = json_number(config, "routed_scaling_factor", where, defaults.scaling);
  read_shared_experts(config, "n_shared_experts", where, 1, &e);
}

void require_word(const Json& config, const char* key, const std::string& where, const std::string& expected) {
  const std::string word = json_string(config, key, where, expected);
  if (word == expected) return;
  throw InputError(where + ": '" + key + "' is " + quote_name(word) + ", but only " + expected +
                   " is supported for this architecture");
}

Family latent_family(const ModelConfig& config) {
  Family family;
  family.pieces.rounded_weights = false;
  family.pieces.wide_router = true;
  family.k.clear(), family.v.clear();
  if (config.latent.query_rank > 0) {
    family.q = "self_attn.q_b_proj.weight";
    family.q_a = "self_attn.q_a_proj.weight";
    family.q_a_norm = "self_attn.q_a_layernorm.weight";
  }
  family.kv_a = "self_attn.kv_a_proj_with_mqa.weight";
  family.kv_a_norm = "self_attn.kv_a_layernorm.weight";
  family.kv_b = "self_attn.kv_b_proj.weight";
  if (config.qkv_bias) {
    family.kv_a_bias = "self_attn.kv_a_proj_with_mqa.bias";
    if (config.latent.query_rank > 0) family.q_a_bias = "self_attn.q_a_proj.bias";
  }
  if (config.output_bias) family.add_output_bias();
  family.add_experts();
  family.add_shared_expert();
  return family;
}

Family sigmoid_latent_family(const ModelConfig& config) {
  Family family = latent_family(config);
  family.pieces.router = RouterKind::kSigmoid;
  family.router_correction = "mlp.gate.e_score_correction_bias";
  return family;
}

}  // namespace oscar
