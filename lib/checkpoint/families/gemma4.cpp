// Gemma 4, text: Gemma 3's layout with plain norm weights, values normalized without a weight, unscaled logits, and a
// scalar per layer.
// Global layers have heads of another size and number, may use keys as values, and apply RoPE only to the first channel
// pairs. Experts, if any, are beside the MLP in every layer.
// The small models (E2B, E4B) have layer embeddings, and their last layers share an earlier layer's cache. The unified
// model (12B) has neither experts nor layer embeddings.
#include <cmath>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json.h"
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/gemma.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostHeadsOfLayer = 4096, kMostDimOfLayer = 4096, kMostWords = std::int64_t{1} << 32;

bool sees_all(const ModelConfig& c, std::int64_t layer) {
  return c.sliding_window[static_cast<std::size_t>(layer)] == 0;
}

std::int64_t size_or(const Json& config, const char* key, const std::string& where, std::int64_t most,
                     std::int64_t absent) {
  const auto it = config.find(key);
  return it == config.end() || it->is_null() ? absent : json_int_within(config, key, where, 1, most);
}

// Each of the last layers shares the cache of the last earlier layer with the same attention span.
void read_shared_caches(const Json& config, const std::string& where, ModelConfig* out) {
  const auto given = config.find("num_kv_shared_layers");
  if (given == config.end() || given->is_null() || *given == 0) return;
  const std::int64_t shared = json_int_within(config, "num_kv_shared_layers", where, 0, out->layers);
  const std::int64_t first = out->layers - shared;
  for (std::int64_t i = 0; i < out->layers; ++i) {
    std::int64_t source = i;
    if (i >= first) {
      for (source = first - 1; source >= 0 && sees_all(*out, source) != sees_all(*out, i);) --source;
    }
    if (source < 0) {
      throw InputError(where + ": 'num_kv_shared_layers' is " + std::to_string(shared) + ", but none of the first " +
                       std::to_string(first) + " layers has keys and values that layer " + std::to_string(i) + ", " +
                       (sees_all(*out, i) ? "which sees all," : "a sliding one,") + " could read");
    }
    out->shared.source.push_back(source);
  }
  if (json_bool(config, "use_double_wide_mlp", where, false)) out->shared.intermediate = 2 * out->intermediate;
}

// Layer embeddings must have the model's vocabulary; otherwise some tokens would have none.
void read_layer_embeddings(const Json& config, const std::string& where, ModelConfig* out) {
  const auto width = config.find("hidden_size_per_layer_input");
  const bool none = width != config.end() && (width->is_null() || *width == 0);
  if (none) return;
  constexpr std::int64_t kMostWidth = 1 << 16;
  out->layer_input = size_or(config, "hidden_size_per_layer_input", where, kMostWidth, 256);
  const std::int64_t words = size_or(config, "vocab_size_per_layer_input", where, kMostWords, 262144);
  if (words == out->vocabulary) return;
  throw InputError(where + ": 'vocab_size_per_layer_input' is " + std::to_string(words) + ", expected " +
                   std::to_string(out->vocabulary) + " as 'vocab_size'");
}

struct HeadSizes {
  std::int64_t kv_heads, head_dim;
  bool operator==(const HeadSizes&) const = default;
};

// Head sizes of global layers as transformers 5.23 writes them: per layer, and listed only if they differ from the
// model's.
HeadSizes sizes_by_layer(const Json& by_layer, const HeadSizes& model, const std::string& where,
                         const ModelConfig& out) {
  const std::string inside = where + ", per_layer_config";
  if (!by_layer.is_object()) throw InputError(inside + ": is " + by_layer.type_name() + ", expected an object");
  std::vector<HeadSizes> sizes(static_cast<std::size_t>(out.layers), model);
  for (const auto& [key, entry] : by_layer.items()) {
    const bool number = !key.empty() && key.size() < 5 && key.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t layer = number ? std::stoll(key) : -1;
    if (layer < 0 || layer >= out.layers || !entry.is_object()) {
      throw InputError(inside + ": holds " + quote_name(key) + ", expected an object for numbers of " +
                       std::to_string(out.layers) + " layers");
    }
    for (const auto& [name, value] : entry.items()) {
      if (name == "head_dim" || name == "num_key_value_heads") continue;
      throw InputError(inside + ": layer " + std::to_string(layer) + " has " + quote_name(name) +
                       " of its own; supported are head_dim and num_key_value_heads");
    }
    HeadSizes& one = sizes[static_cast<std::size_t>(layer)];
    one.head_dim = size_or(entry, "head_dim", inside, kMostDimOfLayer, model.head_dim);
    one.kv_heads = size_or(entry, "num_key_value_heads", inside, kMostHeadsOfLayer, model.kv_heads);
  }
  const HeadSizes full = sizes.back();
  for (std::int64_t i = 0; i < out.layers; ++i) {
    if (sizes[static_cast<std::size_t>(i)] == (sees_all(out, i) ? full : model)) continue;
    throw InputError(inside + ": layer " + std::to_string(i) +
                     " has heads of another size or number than other layers of its type; one cache cannot hold both");
  }
  return full;
}

// Before this call, kv_heads and head_dim describe sliding-window layers. They stay the same if all layers are equal.
void read_head_sizes(const Json& config, const std::string& where, ModelConfig* out) {
  const HeadSizes sliding{out->kv_heads, out->head_dim};
  HeadSizes full = sliding;
  if (const auto by_layer = config.find("per_layer_config"); by_layer != config.end() && !by_layer->is_null()) {
    full = sizes_by_layer(*by_layer, sliding, where, *out);
  } else {
    full.head_dim = size_or(config, "global_head_dim", where, kMostDimOfLayer, 512);
    if (out->keys_as_values) {
      full.kv_heads = size_or(config, "num_global_key_value_heads", where, kMostHeadsOfLayer, sliding.kv_heads);
    }
  }
  if (out->query_heads % full.kv_heads != 0 || full.head_dim % 2 != 0) {
    throw InputError(where + ": layers that see all have " + std::to_string(full.kv_heads) + " KV heads of " +
                     std::to_string(full.head_dim) + " channels, expected an even size and a divisor of " +
                     std::to_string(out->query_heads) + " query heads");
  }
  out->kv_heads = full.kv_heads;
  out->head_dim = full.head_dim;
  if (full == sliding) return;
  out->local.kv_heads = sliding.kv_heads;
  out->local.head_dim = sliding.head_dim;
  for (std::int64_t i = 0; i < out->layers; ++i) out->local.layers.push_back(!sees_all(*out, i));
}

void read_layer_positions(const Json& config, const std::string& where, ModelConfig* out) {
  Json with_defaults = config;
  if (!config.contains("rope_parameters") || config["rope_parameters"].is_null()) {
    with_defaults["rope_parameters"] = {
        {"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  }
  parse_layered_rope(with_defaults, out->max_position, where, {.global = 1e6, .local = 1e4, .global_partial = true},
                     &out->rope, &out->local_rope);
  if (out->rope.type == RopeType::kDefault) out->rope.partial = 1.0;  // not used then
  for (std::int64_t i = 0; i < out->layers; ++i) {
    out->layer_rope.push_back(sees_all(*out, i) ? LayerRope::kGlobal : LayerRope::kLocal);
  }
}

void gemma4_unified_config(const Json& config, const std::string& where, ModelConfig* out) {
  const auto both_ways = config.find("use_bidirectional_attention");  // "vision": only for image tokens
  if (both_ways != config.end() && !both_ways->is_null() && *both_ways != "vision" && *both_ways != false) {
    throw InputError(where + ": 'use_bidirectional_attention' is not supported; a KV cache needs causal attention");
  }
  out->sliding_window.back() = 0;  // independent of layer_types
  read_shared_caches(config, where, out);
  out->keys_as_values = json_bool(config, "attention_k_eq_v", where, false);
  out->unit_v_norm = true;
  out->attention_scale = 1.0;
  out->final_soft_cap = read_soft_cap(config, "final_logit_softcapping", where, 0.0);
  out->embedding_scale = std::sqrt(static_cast<double>(out->hidden));
  read_head_sizes(config, where, out);
  read_layer_positions(config, where, out);
}

void gemma4_config(const Json& config, const std::string& where, ModelConfig* out) {
  gemma4_unified_config(config, where, out);
  read_layer_embeddings(config, where, out);
  if (!json_bool(config, "enable_moe_block", where, false)) return;
  for (const char* key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) {
    json_int_within(config, key, where, 1, std::int64_t{1} << 24);  // no default exists
  }
  read_experts(config, where,
               {.count = 1, .per_token = 1, .intermediate = out->intermediate, .per_token_key = "top_k_experts"}, out);
  out->experts.shared = out->intermediate;
}

Family gemma4_family(const ModelConfig& config) {
  Family family = gemma_family(config);
  family.pieces.norm = NormKind::kWide;
  family.pieces.rounded_weights = false;
  family.layer_scalar = "layer_scalar";
  if (config.layer_input > 0) {
    family.layer_embedding = "model.embed_tokens_per_layer.weight";
    family.layer_projection = "model.per_layer_model_projection.weight";
    family.layer_projection_norm = "model.per_layer_projection_norm.weight";
    family.input_gate = "per_layer_input_gate.weight";
    family.input_projection = "per_layer_projection.weight";
    family.input_out_norm = "post_per_layer_input_norm.weight";
  }
  family.router = "router.proj.weight";
  family.router_scale = "router.scale";
  family.expert_scale = "router.per_expert_scale";
  family.experts_gate_up = "experts.gate_up_proj";
  family.experts_down = "experts.down_proj";
  family.shared_gate = family.gate, family.shared_up = family.up, family.shared_down = family.down;
  family.dense_out_norm = "post_feedforward_layernorm_1.weight";
  family.experts_norm = "pre_feedforward_layernorm_2.weight";
  family.experts_out_norm = "post_feedforward_layernorm_2.weight";
  return family;
}

constexpr ConfigDefaults gemma4_defaults(std::int64_t max_position, std::int64_t window) {
  ConfigDefaults defaults = gemma_defaults(262144, max_position);
  defaults.own_rope = true;
  defaults.qk_norm = true;
  defaults.window = window;
  defaults.pattern = 6;
  return defaults;
}

}  // namespace

extern const FamilyRow kGemma4 = {
    .architecture = "Gemma4ForCausalLM",
    .model_type = "gemma4_text",
    .wrapper = "Gemma4ForConditionalGeneration",
    .wrapper_type = "gemma4",
    .wrapper_ties = true,
    .defaults = gemma4_defaults(131072, 512),
    .read_config = gemma4_config,
    .family = gemma4_family,
};
extern const FamilyRow kGemma4Unified = {
    .architecture = "Gemma4UnifiedForCausalLM",
    .model_type = "gemma4_unified_text",
    .wrapper = "Gemma4UnifiedForConditionalGeneration",
    .wrapper_type = "gemma4_unified",
    .wrapper_ties = true,
    .defaults = gemma4_defaults(262144, 1024),
    .read_config = gemma4_unified_config,
    .family = gemma4_family,
};

}  // namespace oscar
