// Latent attention (LatentAttention in model_config.h), whose RoPE has interleaved pairs. Dense layers come first, then
// experts beside shared ones:
// - DeepSeek-V2 and V2-Lite choose them by softmax scores (topk_method greedy, or from the best groups);
// - DeepSeek-V3 and R1, and Kimi K2 with another model_type, by corrected sigmoid scores from the best groups;
// - GLM-4.7-Flash like V3; mlp_layer_types may list its layers with experts.
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"
#include "checkpoint/layer_types.h"

namespace oscar {
namespace {

struct LatentDefaults {
  std::int64_t query_rank, nope_dim, value_dim;
};

// The model then has one KV head of the latent's size. q_lora_rank null: queries have one projection.
void read_latent(const Json& config, const std::string& where, const LatentDefaults& defaults, ModelConfig* out) {
  const auto size_or = [&](const char* key, std::int64_t fallback) {
    return config.contains(key) ? json_int_within(config, key, where, 1, 4096) : fallback;
  };
  LatentAttention& l = out->latent;
  out->kv_heads = 1;
  out->head_dim = size_or("kv_lora_rank", 512);
  l.rope_dim = size_or("qk_rope_head_dim", 64);
  l.nope_dim = size_or("qk_nope_head_dim", defaults.nope_dim);
  l.value_dim = size_or("v_head_dim", defaults.value_dim);
  const bool one = config.contains("q_lora_rank") && config["q_lora_rank"].is_null();
  l.query_rank = one ? 0 : size_or("q_lora_rank", defaults.query_rank);
  out->rope.interleaved = json_bool(config, "rope_interleave", where, true);
  for (const auto& [key, size] : {std::pair{"kv_lora_rank", out->head_dim}, {"qk_rope_head_dim", l.rope_dim}}) {
    if (size % 2 == 0) continue;
    throw InputError(where + ": '" + key + "' is " + std::to_string(size) + ", expected an even number");
  }
  out->attention_scale = std::pow(out->rope.temperature, 2) / std::sqrt(static_cast<double>(l.query_dim()));
  if (!(out->attention_scale > 0.0 && out->attention_scale < 1e6)) {
    throw InputError(where + ": 'mscale_all_dim' makes the scale of the softmax " +
                     std::to_string(out->attention_scale) + ", expected a positive number");
  }
}

void deepseek_v2_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_latent(config, where, {.query_rank = 1536, .nope_dim = 128, .value_dim = 128}, out);
  out->rope.interleaved = true;
  read_experts(config, where, {.count = 64, .per_token = 0, .intermediate = 1407, .count_key = "n_routed_experts"},
               out);
  ExpertConfig& e = out->experts;
  if (e.per_token == 0) throw InputError(where + ": the key 'num_experts_per_tok' is missing");
  require_word(config, "scoring_func", where, "softmax");
  const std::string method = json_string(config, "topk_method", where, "greedy");
  e.best_of_group = 1;
  if (method == "group_limited_greedy") {
    read_expert_groups(config, where, {1, 1}, &e);
  } else if (method != "greedy") {
    throw InputError(where + ": 'topk_method' is " + quote_name(method) + ", expected greedy or group_limited_greedy");
  }
  e.normalized = false;
  if (json_bool(config, "norm_topk_prob", where, false)) {
    throw InputError(where + ": 'norm_topk_prob' is true, which is not supported for this architecture");
  }
  e.scaling = json_number(config, "routed_scaling_factor", where, 1.0);
  read_shared_experts(config, "n_shared_experts", where, 2, &e);
  read_dense_first(config, where, 0, out);
}

void deepseek_v3_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_latent(config, where, {.query_rank = 1536, .nope_dim = 128, .value_dim = 128}, out);
  read_sigmoid_experts(config, where,
                       {.count = 256, .per_token = 8, .intermediate = 2048, .groups = {8, 4}, .scaling = 2.5}, out);
  read_dense_first(config, where, 3, out);
}

void glm4_moe_lite_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_latent(config, where, {.query_rank = 768, .nope_dim = 192, .value_dim = 256}, out);
  read_sigmoid_experts(config, where,
                       {.count = 64, .per_token = 4, .intermediate = 1536, .groups = {1, 1}, .scaling = 1.8}, out);
  read_dense_first(config, where, 1, out);
  std::vector<bool> sparse = layers_of_type(config, where, out->layers, "sparse", {"dense"}, "mlp_layer_types");
  if (!sparse.empty()) out->experts.layers = std::move(sparse);
}

Family latent_family(const ModelConfig& config) {
  Family family;
  family.k.clear(), family.v.clear();
  if (config.latent.query_rank > 0) {
    family.q = "self_attn.q_b_proj.weight";
    family.q_a = "self_attn.q_a_proj.weight";
    family.q_a_norm = "self_attn.q_a_layernorm.weight";
    if (config.qkv_bias) family.q_a_bias = "self_attn.q_a_proj.bias";
  }
  family.kv_a = "self_attn.kv_a_proj_with_mqa.weight";
  family.kv_a_norm = "self_attn.kv_a_layernorm.weight";
  family.kv_b = "self_attn.kv_b_proj.weight";
  if (config.qkv_bias) family.kv_a_bias = "self_attn.kv_a_proj_with_mqa.bias";
  if (config.output_bias) family.add_output_bias();
  family.add_sigmoid_experts();
  return family;
}

Family deepseek_v2_family(const ModelConfig& config) {
  Family family = latent_family(config);
  family.pieces.router = RouterKind::kSoftmaxFirst;
  family.router_correction.clear();
  return family;
}

}  // namespace

extern const FamilyRow kDeepseekV2 = {
    .architecture = "DeepseekV2ForCausalLM",
    .model_type = "deepseek_v2",
    .defaults = {.head_dim = 64,
                 .query_heads = 32,
                 .vocabulary = 102400,
                 .intermediate = 11008,
                 .bos = 1,
                 .eos = {2, -1, -1},
                 .reads_attention_bias = true},
    .read_config = deepseek_v2_config,
    .family = deepseek_v2_family,
};

extern const FamilyRow kDeepseekV3 = {
    .architecture = "DeepseekV3ForCausalLM",
    .model_type = "deepseek_v3",
    .other_type = "kimi_k2",
    .defaults = {.head_dim = 64,
                 .query_heads = 128,
                 .vocabulary = 129280,
                 .intermediate = 18432,
                 .max_position = 4096,
                 .bos = 0,
                 .eos = {1, -1, -1},
                 .reads_attention_bias = true},
    .read_config = deepseek_v3_config,
    .family = latent_family,
};

extern const FamilyRow kGlm4MoeLite = {
    .architecture = "Glm4MoeLiteForCausalLM",
    .model_type = "glm4_moe_lite",
    .defaults = {.head_dim = 64,
                 .query_heads = 20,
                 .vocabulary = 154880,
                 .intermediate = 10240,
                 .max_position = 202752,
                 .bos = 0,
                 .eos = {1, -1, -1},
                 .rms_eps = 1e-5,
                 .reads_attention_bias = true},
    .read_config = glm4_moe_lite_config,
    .family = latent_family,
};

}  // namespace oscar
