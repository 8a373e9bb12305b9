// Hunyuan (V1, dense and with experts): RMSNorm over each head of q and k after RoPE, not before. Long contexts scale
// the RoPE base by a fixed number, although config.json calls this "dynamic". Every layer may have experts: softmax
// over all in FP32, beside a shared expert of the same width.
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

// NTK-aware scaling with a fixed alpha, theta' = theta alpha^(d / (d - 2)), expressed as plain RoPE.
Json with_plain_rope(const Json& config, std::int64_t head_dim, const std::string& where) {
  Json plain = config;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto it = plain.find(key);
    if (it == plain.end() || !it->is_object() || it->empty()) continue;
    const std::string type = json_string(*it, "rope_type", where, json_string(*it, "type", where, "default"));
    const double alpha = type == "dynamic" ? json_number(*it, "alpha", where, 0.0) : 0.0;
    if (alpha == 0.0) return plain;
    if (!std::isfinite(alpha) || alpha < 0.0 || head_dim <= 2) {
      throw InputError(where + ": 'alpha' is " + std::to_string(alpha) + " with heads of " + std::to_string(head_dim) +
                       ", expected a positive number and more than 2 channels");
    }
    const double beside = json_number(config, "rope_theta", where, 10000.0);
    const double theta = json_number(*it, "rope_theta", where, beside);
    const double width = static_cast<double>(head_dim);
    *it = {{"rope_type", "default"}, {"rope_theta", theta * std::pow(alpha, width / (width - 2.0))}};
    return plain;
  }
  return plain;
}

void hunyuan_config(const Json& config, const std::string& where, ModelConfig* out) {
  out->rope = parse_rope(with_plain_rope(config, out->head_dim, where), {}, out->max_position, where);
  out->norm_after_rope = true;
}

// Published files repeat a number for each layer where transformers accepts either form. Layers that differ are
// refused.
Json with_one_number(const Json& config, const char* key, const std::string& where, Json plain) {
  const auto it = config.find(key);
  if (it == config.end() || !it->is_array()) return plain;
  for (const Json& item : *it) {
    if (item != it->front()) {
      throw InputError(where + ": '" + key + "' differs between layers, expected one number for all of them");
    }
  }
  if (it->empty()) throw InputError(where + ": '" + key + "' is an empty list, expected a number");
  plain[key] = it->front();
  return plain;
}

void hunyuan_moe_config(const Json& config, const std::string& where, ModelConfig* out) {
  hunyuan_config(config, where, out);
  Json plain = config;
  for (const char* key : {"num_experts", "moe_topk"}) plain = with_one_number(config, key, where, std::move(plain));
  read_experts(
      plain, where,
      {.count = 1, .per_token = 1, .intermediate = out->intermediate, .own_size = false, .per_token_key = "moe_topk"},
      out);
  out->experts.shared = out->experts.intermediate;
}

Family hunyuan_family(const ModelConfig& config) {
  Family family;
  family.q_norm = "self_attn.query_layernorm.weight";
  family.k_norm = "self_attn.key_layernorm.weight";
  family.add_biases(config);
  return family;
}

Family hunyuan_moe_family(const ModelConfig& config) {
  Family family = hunyuan_family(config);
  family.pieces.wide_router = true;
  family.pieces.rounded_weights = false;
  family.add_experts();
  family.router = "mlp.gate.wg.weight";
  family.shared_gate = "mlp.shared_mlp.gate_proj.weight";
  family.shared_up = "mlp.shared_mlp.up_proj.weight";
  family.shared_down = "mlp.shared_mlp.down_proj.weight";
  return family;
}

constexpr ConfigDefaults hunyuan_defaults() {
  return {
      .bos = 1, .eos = {2, -1, -1}, .rms_eps = 1e-5, .reads_attention_bias = true, .own_rope = true, .qk_norm = true};
}

}  // namespace

extern const FamilyRow kHunyuan = {
    .architecture = "HunYuanDenseV1ForCausalLM",
    .model_type = "hunyuan_v1_dense",
    .defaults = hunyuan_defaults(),
    .read_config = hunyuan_config,
    .family = hunyuan_family,
};
extern const FamilyRow kHunyuanMoe = {
    .architecture = "HunYuanMoEV1ForCausalLM",
    .model_type = "hunyuan_v1_moe",
    .defaults = hunyuan_defaults(),
    .read_config = hunyuan_moe_config,
    .family = hunyuan_moe_family,
};

}  // namespace oscar
