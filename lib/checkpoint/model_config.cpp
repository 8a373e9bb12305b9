#include "checkpoint/model_config.h"

#include <array>
#include <cmath>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_range.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

enum class Windows { kNone, kEveryLayer, kByLayer };

// What transformers 5 does for a family where config.json is silent, and what its layers fix in code.
struct Family {
  const char* architecture;
  const char* model_type;
  std::int64_t head_dim;      // 0: hidden / query heads
  std::int64_t kv_heads;      // when the key is absent; 0: as many as query heads
  std::int64_t max_position;  // when absent
  std::int64_t bos, eos;      // when absent; -1: none
  bool qkv_bias;              // always, whatever attention_bias says
  bool reads_attention_bias;  // q, k, v and o follow attention_bias
  bool reads_mlp_bias;
  bool qk_norm;
  Windows windows;
};

constexpr std::array<Family, 4> kFamilies{{
    {"LlamaForCausalLM", "llama", 0, 0, 2048, 1, 2, false, true, true, false, Windows::kNone},
    {"MistralForCausalLM", "mistral", 0, 8, 131072, 1, 2, false, false, false, false, Windows::kEveryLayer},
    {"Qwen2ForCausalLM", "qwen2", 0, 32, 32768, -1, -1, true, false, false, false, Windows::kByLayer},
    {"Qwen3ForCausalLM", "qwen3", 128, 32, 32768, -1, -1, false, true, false, true, Windows::kByLayer},
}};

const Family& find_family(const Json& config, const std::string& where) {
  std::string name = json_string(config, "model_type", where, "");
  const std::string type = name;
  const auto list = config.find("architectures");
  if (list != config.end() && !list->is_null()) {
    if (!list->is_array() || list->empty() || !list->front().is_string()) {
      throw InputError(where + ": 'architectures' must be a list of names");
    }
    name = list->front().get<std::string>();
  }
  if (name.empty()) throw InputError(where + ": the key 'architectures' is missing; is this a model's config.json?");
  for (const Family& family : kFamilies) {
    if (name != family.architecture && name != family.model_type) continue;
    if (!type.empty() && type != family.model_type) {
      throw InputError(where + ": model_type " + quote_name(type) + " does not belong to the architecture " +
                       quote_name(name));
    }
    return family;
  }
  throw InputError(where + ": the architecture " + quote_name(name) + " is not supported; supported are " +
                   supported_architectures());
}

// absent: the family's default; null: `null_value`; else 1 to `most`.
std::int64_t sized_or(const Json& config, const char* key, const std::string& where, std::int64_t most,
                      std::int64_t absent, std::int64_t null_value) {
  const auto it = config.find(key);
  if (it == config.end()) return absent;
  return it->is_null() ? null_value : json_int_within(config, key, where, 1, most);
}

void parse_heads(const Json& config, const Family& family, const std::string& where, ModelConfig* out) {
  constexpr std::int64_t kMostHeads = 4096, kMostDim = 4096;
  out->query_heads = json_int_within(config, "num_attention_heads", where, 1, kMostHeads);
  out->kv_heads = sized_or(config, "num_key_value_heads", where, kMostHeads,
                           family.kv_heads == 0 ? out->query_heads : family.kv_heads, out->query_heads);
  if (out->query_heads % out->kv_heads != 0) {
    throw InputError(where + ": " + std::to_string(out->query_heads) + " query heads are not a multiple of " +
                     std::to_string(out->kv_heads) + " KV heads");
  }
  out->head_dim = sized_or(config, "head_dim", where, kMostDim, family.head_dim, family.head_dim);
  if (out->head_dim == 0) {
    if (out->hidden % out->query_heads != 0) {
      throw InputError(where + ": hidden_size " + std::to_string(out->hidden) + " is not a multiple of " +
                       std::to_string(out->query_heads) + " heads and there is no head_dim");
    }
    out->head_dim = out->hidden / out->query_heads;
  }
  if (out->head_dim % 2 != 0) {
    throw InputError(where + ": head_dim " + std::to_string(out->head_dim) + " is odd, rotary positions need pairs");
  }
}

// layer_types as written: true where the layer slides. Empty when the key is absent or null.
std::vector<bool> parse_layer_types(const Json& config, std::int64_t layers, const std::string& where) {
  const auto it = config.find("layer_types");
  if (it == config.end() || it->is_null()) return {};
  if (!it->is_array() || it->size() != static_cast<std::size_t>(layers)) {
    throw InputError(where + ": 'layer_types' must be a list of " + std::to_string(layers) + " names");
  }
  std::vector<bool> slides;
  for (const Json& item : *it) {
    const std::string name = item.is_string() ? item.get<std::string>() : item.dump();
    if (name != "full_attention" && name != "attention" && name != "sliding_attention") {
      throw InputError(where + ": the layer type " + quote_name(name) +
                       " is not supported; supported are full_attention, sliding_attention");
    }
    slides.push_back(name == "sliding_attention");
  }
  return slides;
}

// Follows transformers: Llama has no windows; Mistral slides in every layer unless sliding_window is null or
// layer_types says otherwise (which makes it Ministral there); Qwen slides only with use_sliding_window, in the layers
// of layer_types or else from max_window_layers on.
void parse_windows(const Json& config, const Family& family, const std::string& where, ModelConfig* out) {
  out->sliding_window.assign(static_cast<std::size_t>(out->layers), 0);
  if (family.windows == Windows::kNone) return;
  constexpr std::int64_t kDefaultWindow = 4096, kMost = std::int64_t{1} << 40;
  std::int64_t window = sized_or(config, "sliding_window", where, kMost, kDefaultWindow, 0);
  std::int64_t first = 0;
  if (family.windows == Windows::kByLayer) {
    if (!json_bool(config, "use_sliding_window", where, false)) window = 0;
    first = json_int(config, "max_window_layers", where, 28);
  }
  std::vector<bool> slides = parse_layer_types(config, out->layers, where);
  for (std::int64_t i = 0; i < out->layers; ++i) {
    const auto layer = static_cast<std::size_t>(i);
    const bool slide = slides.empty() ? window > 0 && i >= first : slides[layer];
    if (slide && window == 0) {
      throw InputError(where + ": layer " + std::to_string(i) +
                       " is of type sliding_attention, but sliding_window is " + "null or switched off");
    }
    if (slide) out->sliding_window[layer] = window;
  }
}

std::int64_t token_id(const Json& value, const char* key, const std::string& where) {
  const Json wrapped{{key, value}};
  const std::int64_t id = json_int(wrapped, key, where);
  if (id < 0 || id > INT32_MAX) throw InputError(where + ": '" + key + "' is " + std::to_string(id));
  return id;
}

void parse_special_tokens(const Json& config, const Family& family, const std::string& where, ModelConfig* out) {
  const auto bos = config.find("bos_token_id");
  out->bos_token = bos == config.end() ? family.bos : bos->is_null() ? -1 : token_id(*bos, "bos_token_id", where);
  const auto eos = config.find("eos_token_id");
  if (eos == config.end()) {
    if (family.eos >= 0) out->eos_tokens.push_back(family.eos);
  } else if (eos->is_array()) {
    for (const Json& item : *eos) out->eos_tokens.push_back(token_id(item, "eos_token_id", where));
  } else if (!eos->is_null()) {
    out->eos_tokens.push_back(token_id(*eos, "eos_token_id", where));
  }
}

}  // namespace

std::string supported_architectures() {
  std::string text;
  for (const Family& family : kFamilies) text += (text.empty() ? "" : ", ") + std::string(family.architecture);
  return text;
}

ModelConfig parse_model_config(const Json& config, const std::string& where) {
  if (!config.is_object()) throw InputError(where + ": is " + config.type_name() + ", expected a JSON object");
  const Family& family = find_family(config, where);
  const auto quantization = config.find("quantization_config");
  if (quantization != config.end() && !quantization->is_null()) {
    throw InputError(where + ": the weights are quantised ('quantization_config'), which is not supported; use the " +
                     "BF16, F16 or F32 checkpoint of the model");
  }

  ModelConfig out;
  out.architecture = family.architecture;
  out.model_type = family.model_type;
  out.layers = json_int_within(config, "num_hidden_layers", where, 1, 4096);
  out.hidden = json_int_within(config, "hidden_size", where, 1, std::int64_t{1} << 20);
  out.intermediate = json_int_within(config, "intermediate_size", where, 1, std::int64_t{1} << 24);
  out.vocabulary = json_int_within(config, "vocab_size", where, 1, std::int64_t{1} << 26);
  parse_heads(config, family, where, &out);
  out.max_position = sized_or(config, "max_position_embeddings", where, std::int64_t{1} << 40, family.max_position,
                              family.max_position);
  out.rms_eps = json_number(config, "rms_norm_eps", where, out.rms_eps);
  if (!std::isfinite(out.rms_eps) || out.rms_eps < 0.0) {
    throw InputError(where + ": 'rms_norm_eps' must be a number of at least 0");
  }
  const std::string activation = json_string(config, "hidden_act", where, "silu");
  if (activation != "silu" && activation != "swish") {
    throw InputError(where + ": the activation " + quote_name(activation) + " is not supported; supported is silu");
  }
  out.tie_embeddings = json_bool(config, "tie_word_embeddings", where, false);
  const bool attention_bias = family.reads_attention_bias && json_bool(config, "attention_bias", where, false);
  out.qkv_bias = family.qkv_bias || attention_bias;
  out.output_bias = attention_bias;
  out.mlp_bias = family.reads_mlp_bias && json_bool(config, "mlp_bias", where, false);
  out.qk_norm = family.qk_norm;
  out.rope = parse_rope(config, out.max_position, where);
  parse_windows(config, family, where, &out);
  parse_special_tokens(config, family, where, &out);
  out.torch_dtype = json_string(config, "dtype", where, json_string(config, "torch_dtype", where, ""));
  return out;
}

}  // namespace oscar
