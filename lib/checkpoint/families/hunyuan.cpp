// Hunyuan (dense, V1): RMSNorm over each head of q and k after RoPE, not before; its long contexts stretch the base of
// RoPE by a fixed number, though config.json calls that "dynamic".
#include <cmath>

#include "base/errors.h"
#include "checkpoint/families/family.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

// NTK-aware scaling with a fixed alpha: theta' = theta alpha^(d / (d - 2)), and plain RoPE with it.
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

Family hunyuan_family(const ModelConfig& config) {
  Family family;
  family.q_norm = "self_attn.query_layernorm.weight";
  family.k_norm = "self_attn.key_layernorm.weight";
  family.add_biases(config);
  return family;
}

}  // namespace

extern const FamilyRow kHunyuan;
const FamilyRow kHunyuan = {
    .architecture = "HunYuanDenseV1ForCausalLM",
    .model_type = "hunyuan_v1_dense",
    .defaults = {.bos = 1,
                 .eos = {2, -1, -1},
                 .rms_eps = 1e-5,
                 .reads_attention_bias = true,
                 .own_rope = true,
                 .qk_norm = true},
    .read_config = hunyuan_config,
    .family = hunyuan_family,
};

}  // namespace oscar
