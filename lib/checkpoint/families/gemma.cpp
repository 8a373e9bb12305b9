#include "checkpoint/families/gemma.h"

#include <cmath>

#include "base/errors.h"
#include "base/json.h"

namespace oscar {

double read_soft_cap(const Json& config, const char* key, const std::string& where, double absent) {
  const auto it = config.find(key);
  if (it == config.end()) return absent;
  if (it->is_null()) return 0.0;
  const double cap = json_number(config, key, where);
  if (!std::isfinite(cap) || cap <= 0.0) {
    throw InputError(where + ": '" + key + "' is " + std::to_string(cap) + ", expected a positive number or null");
  }
  return cap;
}

void read_gemma(const Json& config, const std::string& where, double logit_cap, double final_cap, ModelConfig* out) {
  if (json_bool(config, "use_bidirectional_attention", where, false)) {
    throw InputError(where + ": 'use_bidirectional_attention' is not supported; a KV cache needs causal attention");
  }
  const char* scalar_key = "query_pre_attn_scalar";
  const double scalar = require_positive(json_number(config, scalar_key, where, 256.0), scalar_key, where);
  out->attention_scale = 1.0 / std::sqrt(scalar);
  out->logit_soft_cap = read_soft_cap(config, "attn_logit_softcapping", where, logit_cap);
  out->final_soft_cap = read_soft_cap(config, "final_logit_softcapping", where, final_cap);
  out->embedding_scale = std::sqrt(static_cast<double>(out->hidden));
}

Family gemma_family(const ModelConfig& config) {
  Family family;
  family.pieces.norm = NormKind::kOnePlus;
  family.attention_out_norm = "post_attention_layernorm.weight";
  family.mlp_norm = "pre_feedforward_layernorm.weight";
  family.mlp_out_norm = "post_feedforward_layernorm.weight";
  if (config.qk_norm) family.add_qk_norm();
  family.add_biases(config);
  return family;
}

}  // namespace oscar
