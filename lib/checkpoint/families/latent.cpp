#include "checkpoint/families/latent.h"

#include <cmath>

#include "base/errors.h"
#include "base/json.h"

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
  out->kv_heads = 1;
  out->head_dim = size_or(config, "kv_lora_rank", where, defaults.rank);
  l.rope_dim = size_or(config, "qk_rope_head_dim", where, defaults.rope_dim);
  l.nope_dim = size_or(config, "qk_nope_head_dim", where, defaults.nope_dim);
  l.value_dim = size_or(config, "v_head_dim", where, defaults.value_dim);
  out->rope.interleaved = json_bool(config, "rope_interleave", where, true);
  const auto rank = config.find("q_lora_rank");
  const bool one = rank != config.end() && rank->is_null();
  l.query_rank = one                    ? 0
                 : rank == config.end() ? defaults.query_rank
                                        : json_int_within(config, "q_lora_rank", where, 1, std::int64_t{1} << 20);
  if (l.rope_dim % 2 != 0) {
    throw InputError(where + ": 'qk_rope_head_dim' is " + std::to_string(l.rope_dim) + ", expected an even number");
  }
  const double factor = temperature(config, out->rope, where);
  out->attention_scale = factor * factor / std::sqrt(static_cast<double>(l.query_dim()));
  if (!(out->attention_scale > 0.0 && out->attention_scale < 1e6)) {
    throw InputError(where + ": 'mscale_all_dim' makes the scale of the softmax " +
                     std::to_string(out->attention_scale) + ", expected a positive number");
  }
}

Family latent_family(const ModelConfig& config) {
  Family family;
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
  return family;
}

Family sigmoid_latent_family(const ModelConfig& config) {
  Family family = latent_family(config);
  family.add_sigmoid_experts();
  return family;
}

}  // namespace oscar
