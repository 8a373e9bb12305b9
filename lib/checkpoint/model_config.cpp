#include "checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "base/edit_distance.h"
#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json.h"
#include "checkpoint/families/family.h"
#include "checkpoint/layer_types.h"
#include "checkpoint/rope_config.h"

namespace oscar {
namespace {

// The name of a supported family that is almost this one, such as that of an earlier release; or nothing.
std::string nearest_family(const std::string& name) {
  const auto stem = [](const std::string& whole) { return whole.substr(0, whole.find("For")); };
  std::vector<std::string> stems;
  for (const FamilyRow* row : family_rows()) stems.push_back(stem(row->architecture));
  const std::string meant = meant_name(stem(name), stems);
  const auto place = std::find(stems.begin(), stems.end(), meant) - stems.begin();
  return meant.empty() ? "" : family_rows()[static_cast<std::size_t>(place)]->architecture;
}

struct FoundFamily {
  const FamilyRow* row;
  bool wrapped;  // the architecture is the family's multimodal wrapper
};

// Whether the text model of a wrapper belongs to this family. If the wrapper does not say, the family that it usually
// contains is assumed.
bool has_text_model(const Json& config, const FamilyRow& row, const std::string& where) {
  const auto text = config.find("text_config");
  if (text == config.end() || !text->is_object()) return !row.named_inside;
  return json_string(*text, "model_type", where, row.named_inside ? "" : row.model_type) == row.model_type;
}

FoundFamily find_family(const Json& config, const std::string& where) {
  std::string name = json_string(config, "model_type", where, "");
  const std::string type = name;
  const auto list = config.find("architectures");
  if (list != config.end() && !list->is_null()) {
    if (!list->is_array() || (!list->empty() && !list->front().is_string())) {
      throw InputError(where + ": 'architectures' must be a list of names");
    }
    if (!list->empty()) name = list->front().get<std::string>();  // else model_type decides, as without the list
  }
  if (name.empty()) throw InputError(where + ": the key 'architectures' is missing; is this a model's config.json?");
  // Saved from the model without its head: "Qwen3Model". AutoModelForCausalLM of transformers goes by model_type, too.
  const bool headless = name.ends_with("Model") && !type.empty();
  for (const FamilyRow* row : family_rows()) {
    const bool wrapped = row->wrapper != nullptr && (name == row->wrapper || name == row->wrapper_type);
    const bool second = row->other_type != nullptr && type == row->other_type && !wrapped;
    const bool bare = headless && (second || type == row->model_type);
    const bool by_type = name == row->model_type || (second && name == type);
    if (!wrapped && !bare && !by_type && name != row->architecture) continue;
    if (wrapped && !has_text_model(config, *row, where)) continue;
    if (!type.empty() && !second && type != (wrapped ? row->wrapper_type : row->model_type)) {
      throw InputError(where + ": model_type " + quote_name(type) + " does not belong to the architecture " +
                       quote_name(name));
    }
    return {row, wrapped};
  }
  for (const FamilyRow* row : family_rows()) {
    if (row->wrapper == nullptr || (name != row->wrapper && name != row->wrapper_type)) continue;
    throw InputError(where + ": the text model inside " + quote_name(name) + " has the model_type " +
                     quote_name(json_string(config["text_config"], "model_type", where)) +
                     ", which is not supported there");
  }
  const std::string nearest = nearest_family(name);
  throw InputError(where + ": the architecture " + quote_name(name) + " is not supported; " +
                   (nearest.empty() ? ""
                                    : "the nearest supported name is " + nearest +
                                          " (compare its norms, projections, RoPE and MLP before you rename "
                                          "anything), and ") +
                   "all that are supported are " + supported_architectures());
}

// Absent: the family's default; null: `null_value`; otherwise 1 to `most`.
std::int64_t sized_or(const Json& config, const char* key, const std::string& where, std::int64_t most,
                      std::int64_t absent, std::int64_t null_value) {
  const auto it = config.find(key);
  if (it == config.end()) return absent;
  return it->is_null() ? null_value : json_int_within(config, key, where, 1, most);
}

// Absent: `absent`, if the family has a default.
std::int64_t required_or(const Json& config, const char* key, const std::string& where, std::int64_t most,
                         std::int64_t absent) {
  if (absent > 0 && !config.contains(key)) return absent;
  return json_int_within(config, key, where, 1, most);
}

void parse_heads(const Json& config, const ConfigDefaults& family, const std::string& where, ModelConfig* out) {
  constexpr std::int64_t kMostHeads = 4096, kMostDim = 4096;
  out->query_heads = required_or(config, "num_attention_heads", where, kMostHeads, family.query_heads);
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

// Follows transformers: see SlidingLayers. Mistral with layer_types is Ministral there.
void parse_sliding_windows(const Json& config, const ConfigDefaults& family, const std::string& where,
                           ModelConfig* out) {
  out->sliding_window.assign(static_cast<std::size_t>(out->layers), 0);
  if (family.sliding == SlidingLayers::kNone) return;
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  std::int64_t first = 0, pattern = 0;
  const bool switched = family.sliding == SlidingLayers::kByLayer || family.sliding == SlidingLayers::kSwitched;
  const bool off = switched && !json_bool(config, "use_sliding_window", where, false);
  if (family.sliding == SlidingLayers::kByLayer) first = json_int(config, "max_window_layers", where, 28);
  const std::vector<bool> types =
      family.sliding == SlidingLayers::kSwitched
          ? std::vector<bool>{}
          : layers_of_type(config, where, out->layers, "sliding_attention", {"full_attention", "attention"});
  // Where no layer has a window, its length means nothing: published configurations then have 0.
  json_int(config, "sliding_window", where, 0);  // refuses what is no number
  const bool none = off || (!types.empty() && std::find(types.begin(), types.end(), true) == types.end());
  const std::int64_t window = none ? 0 : sized_or(config, "sliding_window", where, kMost, family.window, 0);
  if (family.sliding == SlidingLayers::kPattern && types.empty()) {  // with a list, the key may be a word ("LLLG")
    pattern = sized_or(config, "sliding_window_pattern", where, kMost, family.pattern, family.pattern);
  }
  for (std::int64_t i = 0; i < out->layers; ++i) {
    const auto layer = static_cast<std::size_t>(i);
    const bool by_rule = pattern > 0 ? (i + 1) % pattern != 0 : window > 0 && i >= first;
    const bool slide = types.empty() ? by_rule : types[layer];
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
  if (id > INT32_MAX) throw InputError(where + ": '" + key + "' is " + std::to_string(id));
  return std::max<std::int64_t>(id, -1);  // older conversions write -1 for a token that the model does not have
}

void parse_special_tokens(const Json& config, const ConfigDefaults& family, const std::string& where,
                          ModelConfig* out) {
  const auto bos = config.find("bos_token_id");
  out->bos_token = bos == config.end() ? family.bos : bos->is_null() ? -1 : token_id(*bos, "bos_token_id", where);
  const auto eos = config.find("eos_token_id");
  if (eos == config.end()) {
    for (const std::int64_t token : family.eos) {
      if (token >= 0) out->eos_tokens.push_back(token);
    }
  } else if (eos->is_array()) {
    for (const Json& item : *eos) out->eos_tokens.push_back(token_id(item, "eos_token_id", where));
  } else if (!eos->is_null()) {
    out->eos_tokens.push_back(token_id(*eos, "eos_token_id", where));
  }
  std::erase(out->eos_tokens, -1);
}

Activation parse_activation(const Json& config, const ConfigDefaults& family, const std::string& where) {
  const std::string name = json_string(config, family.activation_key, where, family.activation);
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  throw InputError(where + ": the activation " + quote_name(name) +
                   " is not supported; supported are silu and gelu_pytorch_tanh");
}

void check_rotation(const RopeConfig& rope, std::int64_t head_dim, const std::string& where) {
  const std::int64_t turning = rope.turning(head_dim);
  if (turning < 2 || turning % 2 != 0) {
    throw InputError(where + ": " + std::to_string(turning) + " of " + std::to_string(head_dim) +
                     " channels would turn with position ('partial_rotary_factor'), expected an even number");
  }
}

// Users who raise the factor often leave max_position_embeddings unchanged; servers then use the factor. It scales the
// original length with YaRN, and the model's maximum with dynamic and linear RoPE. Gemma 3, with a separate RoPE for
// sliding-window layers, has a linear factor that its maximum already includes.
std::int64_t served_positions(const RopeConfig& rope, bool layered, std::int64_t max_position) {
  if (rope.factor <= 1.0) return max_position;
  const bool yarn = rope.type == RopeType::kYarn, linear = rope.type == RopeType::kLinear && !layered;
  if (!yarn && !linear && rope.type != RopeType::kDynamic) return max_position;
  const auto original = static_cast<double>(yarn ? rope.original_max_position : max_position);
  return std::max(max_position, static_cast<std::int64_t>(original * std::min(rope.factor, 1e6)));
}

}  // namespace

std::int64_t ModelConfig::kv_place(std::int64_t layer) const {
  if (linear.layers.empty() && local.layers.empty() && shared.source.empty()) return layer;
  std::int64_t place = 0;
  for (std::int64_t i = 0; i < layer; ++i) place += holds_kv(i) ? 1 : 0;
  return place;
}

std::int64_t ModelConfig::kv_layers() const { return kv_place(layers); }

std::int64_t ModelConfig::kv_layer(std::int64_t place) const {
  if (linear.layers.empty() && local.layers.empty() && shared.source.empty()) return place;
  for (std::int64_t i = 0; i < layers; ++i) {
    if (holds_kv(i) && place-- == 0) return i;
  }
  throw std::out_of_range("no layer in this place holds a KV cache");
}

std::vector<std::int64_t> ModelConfig::shared_layers() const {
  std::set<std::int64_t> sources;
  for (std::int64_t i = 0; i < layers; ++i) {
    if (reads_another(i)) sources.insert(shared.source[static_cast<std::size_t>(i)]);
  }
  return {sources.begin(), sources.end()};
}

std::int64_t ModelConfig::state_width() const {
  std::int64_t width = hidden + layers * layer_input;
  for (const std::int64_t source : shared_layers()) width += 2 * kv_heads_of(source) * head_dim_of(source);
  return width;
}

void refuse_carried_rows(const ModelConfig& config, const std::string& what) {
  if (config.state_width() == config.hidden) return;
  throw InputError(what + " does not serve " + config.architecture +
                   " with embeddings for each layer or layers that read the cache of another");
}

std::string supported_architectures() {
  std::string text;
  for (const FamilyRow* row : family_rows()) {
    text += (text.empty() ? "" : ", ") + std::string(row->architecture);
    if (row->wrapper != nullptr && text.find(row->wrapper) == std::string::npos) {
      text += std::string(", ") + row->wrapper;
    }
  }
  return text;
}

ModelConfig parse_model_config(const Json& whole, const std::string& where) {
  if (!whole.is_object()) throw InputError(where + ": is " + whole.type_name() + ", expected a JSON object");
  const auto [row, wrapped] = find_family(whole, where);
  const ConfigDefaults& family = row->defaults;
  const Json config = wrapped ? text_config(whole, *row) : whole;

  ModelConfig out;
  if (!json_bool(config, "is_causal", where, true)) {
    throw InputError(where +
                     ": 'is_causal' is false, so attention sees later tokens; a KV cache needs causal attention");
  }
  out.architecture = row->architecture;
  out.model_type = row->model_type;
  out.text_tower = wrapped;
  out.weights = parse_weight_config(config, where);
  out.layers = json_int_within(config, "num_hidden_layers", where, 1, 4096);
  out.hidden = json_int_within(config, "hidden_size", where, 1, std::int64_t{1} << 20);
  out.intermediate = required_or(config, "intermediate_size", where, std::int64_t{1} << 24, family.intermediate);
  out.vocabulary = required_or(config, "vocab_size", where, std::int64_t{1} << 26, family.vocabulary);
  parse_heads(config, family, where, &out);
  out.max_position = sized_or(config, "max_position_embeddings", where, std::int64_t{1} << 40, family.max_position,
                              family.max_position);
  out.rms_eps = json_number(config, family.eps_key, where, family.rms_eps);
  if (!std::isfinite(out.rms_eps) || out.rms_eps < 0.0) {
    throw InputError(where + ": '" + family.eps_key + "' must be a number of at least 0");
  }
  out.activation = parse_activation(config, family, where);
  out.tie_embeddings = json_bool(config, "tie_word_embeddings", where, family.tied);
  const bool outside = wrapped && json_bool(whole, "tie_word_embeddings", where, row->wrapper_ties);
  out.one_table = out.tie_embeddings || outside;
  const bool bias = family.reads_attention_bias && json_bool(config, "attention_bias", where, family.attention_bias);
  out.qkv_bias = family.qkv_bias || bias;
  out.output_bias = bias && family.output_bias;
  out.mlp_bias = family.reads_mlp_bias && json_bool(config, "mlp_bias", where, false);
  out.qk_norm = family.qk_norm;
  if (!family.own_rope) {
    out.rope =
        parse_rope(config, {family.rope_theta, family.partial_rope, family.partial_rotary}, out.max_position, where);
  }
  parse_sliding_windows(config, family, where, &out);
  parse_special_tokens(config, family, where, &out);
  out.torch_dtype = json_string(config, "dtype", where, json_string(config, "torch_dtype", where, ""));
  if (row->read_config != nullptr) row->read_config(config, where, &out);
  check_rotation(out.rope, out.rotary_width(), where);
  check_rope_factors(out.rope, out.rotary_width(), where);
  out.max_position = served_positions(out.rope, !out.layer_rope.empty(), out.max_position);
  if (!out.layer_rope.empty()) check_rope_factors(out.local_rope, out.local_head_dim(), where);
  return out;
}

}  // namespace oscar
