// Llama 4, text. Layers with interleaved RoPE see their chunk of the sequence and normalize q and k heads to unit mean
// square after RoPE. The other layers have no RoPE, see all tokens, and scale queries by position.
// The sigmoid of the largest logits weights the experts' inputs, beside a shared expert. Dense MLPs have another width.
#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json.h"
#include "checkpoint/families/experts_config.h"
#include "checkpoint/families/family.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

// A list of at least `count` items under `key`; null if absent.
const Json* list_of(const Json& config, const char* key, std::int64_t count, const std::string& where) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return nullptr;
  if (!it->is_array() || (count > 0 && it->size() != static_cast<std::size_t>(count) && !it->empty())) {
    throw InputError(where + ": '" + key + "' must be a list" +
                     (count > 0 ? " of " + std::to_string(count) + " items" : std::string()));
  }
  return it->empty() && count > 0 ? nullptr : &*it;
}

void read_positions(const Json& config, const std::string& where, ModelConfig* out) {
  const std::int64_t interval = json_int(config, "no_rope_layer_interval", where, 4);
  if (interval < 1) {
    throw InputError(where + ": 'no_rope_layer_interval' is " + std::to_string(interval) + ", expected at least 1");
  }
  const Json* turns = list_of(config, "no_rope_layers", out->layers, where);  // 1 means with RoPE
  const Json* types = list_of(config, "layer_types", out->layers, where);
  const auto chunk_size = config.find("attention_chunk_size");
  const bool no_chunks = chunk_size != config.end() && chunk_size->is_null();
  const std::int64_t chunk = chunk_size == config.end() ? 8192
                             : no_chunks                ? 0
                                         : json_int_within(config, "attention_chunk_size", where, 1, kMostTokens);
  for (std::int64_t i = 0; i < out->layers; ++i) {
    const auto layer = static_cast<std::size_t>(i);
    bool turned = (i + 1) % interval != 0;
    if (turns != nullptr) {
      if (!(*turns)[layer].is_number_integer()) {
        throw InputError(where + ": 'no_rope_layers' must be a list of numbers 0 or 1");
      }
      turned = (*turns)[layer].get<std::int64_t>() != 0;
    }
    bool chunked = turned;
    if (types != nullptr) {
      const std::string name =
          (*types)[layer].is_string() ? (*types)[layer].get<std::string>() : (*types)[layer].dump();
      if (name != "full_attention" && name != "chunked_attention") {
        throw InputError(where + ": the layer type " + quote_name(name) +
                         " is not supported; supported are full_attention, chunked_attention");
      }
      chunked = name == "chunked_attention";
    }
    if (chunked && no_chunks) {
      throw InputError(where + ": layer " + std::to_string(i) +
                       " is of type chunked_attention, but attention_chunk_size is null");
    }
    out->layer_rope.push_back(turned ? LayerRope::kGlobal : LayerRope::kNone);
    out->chunk.push_back(chunked ? chunk : 0);
  }
  out->rope.interleaved = true;
}

void llama4_config(const Json& config, const std::string& where, ModelConfig* out) {
  read_positions(config, where, out);
  out->unit_qk_norm = json_bool(config, "use_qk_norm", where, true);
  const auto tuned = config.find("attn_temperature_tuning");  // a number in some files
  if (tuned != config.end() && tuned->is_number() ? *tuned != 0
                                                  : json_bool(config, "attn_temperature_tuning", where, true)) {
    out->query_scale.beta = json_number(config, "attn_scale", where, 0.1);
    out->query_scale.length = require_positive(json_number(config, "floor_scale", where, 8192.0), "floor_scale", where);
    out->query_scale.first = 1;
    out->query_scale.without_rope = true;
  }
  const std::int64_t width = out->intermediate;
  read_experts(config, where, {.count = 16, .per_token = 1, .intermediate = width, .own_size = false}, out);
  ExpertConfig& e = out->experts;
  e.normalized = false;
  e.shared = width;
  out->intermediate = config.contains("intermediate_size_mlp")
                          ? json_int_within(config, "intermediate_size_mlp", where, 1, std::int64_t{1} << 24)
                          : 16384;
  const std::int64_t step = json_int(config, "interleave_moe_layer_step", where, 1);
  if (step < 1) {
    throw InputError(where + ": 'interleave_moe_layer_step' is " + std::to_string(step) + ", expected at least 1");
  }
  const Json* listed = list_of(config, "moe_layers", 0, where);
  for (std::int64_t i = 0; i < out->layers; ++i) {
    e.layers[static_cast<std::size_t>(i)] = listed == nullptr && (i + 1) % step == 0;
  }
  if (listed == nullptr) return;
  for (const Json& item : *listed) {
    if (!item.is_number_integer()) throw InputError(where + ": 'moe_layers' must be a list of layer numbers");
    const auto layer = item.get<std::int64_t>();
    if (layer >= 0 && layer < out->layers) e.layers[static_cast<std::size_t>(layer)] = true;
  }
}

Family llama4_family(const ModelConfig& config) {
  Family family;
  family.pieces.router = RouterKind::kLargestSigmoids;
  family.pieces.fused = FusedExperts::kTransposed;
  family.pieces.weighed_inputs = true;
  family.add_biases(config);
  family.gate = "feed_forward.gate_proj.weight";
  family.up = "feed_forward.up_proj.weight";
  family.down = "feed_forward.down_proj.weight";
  family.router = "feed_forward.router.weight";
  family.experts_gate_up = "feed_forward.experts.gate_up_proj";
  family.experts_down = "feed_forward.experts.down_proj";
  family.shared_gate = "feed_forward.shared_expert.gate_proj.weight";
  family.shared_up = "feed_forward.shared_expert.up_proj.weight";
  family.shared_down = "feed_forward.shared_expert.down_proj.weight";
  return family;
}

}  // namespace

extern const FamilyRow kLlama4 = {
    .architecture = "Llama4ForCausalLM",
    .model_type = "llama4_text",
    .wrapper = "Llama4ForConditionalGeneration",
    .wrapper_type = "llama4",
    .defaults = {.head_dim = 128,
                 .query_heads = 40,
                 .kv_heads = 8,
                 .vocabulary = 202048,
                 .intermediate = 8192,
                 .max_position = 131072,
                 .bos = 1,
                 .eos = {2, -1, -1},
                 .rms_eps = 1e-5,
                 .rope_theta = 500000.0,
                 .reads_attention_bias = true},
    .read_config = llama4_config,
    .family = llama4_family,
};

}  // namespace oscar
