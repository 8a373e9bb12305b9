#include "checkpoint/rope_config.h"

#include <cmath>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json.h"

namespace oscar {
namespace {

const Json* non_empty_object(const Json& config, const char* key, const std::string& where) {
  const auto it = config.find(key);
  if (it == config.end() || it->is_null()) return nullptr;
  if (!it->is_object()) {
    throw InputError(where + ": '" + key + "' is " + it->type_name() + ", expected an object or null");
  }
  return it->empty() ? nullptr : &*it;
}

RopeType parse_type(const std::string& name, const std::string& where) {
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  if (name == "longrope") return RopeType::kLongRope;
  if (name == "dynamic") return RopeType::kDynamic;
  if (name == "proportional") return RopeType::kProportional;
  throw InputError(where + ": the rope type " + quote_name(name) +
                   " is not supported; supported are default, linear, llama3, yarn, longrope, dynamic, proportional");
}

bool given(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && !it->is_null();
}

// Zero counts as absent for keys where transformers writes `value or default`.
double number_or(const Json& object, const char* key, const std::string& where, double fallback) {
  const double value = json_number(object, key, where, 0.0);
  return value == 0.0 ? fallback : require_positive(value, key, where);
}

// Attention temperature of YaRN (arXiv 2309.00071, section 3.4), with the ratio of mscale and mscale_all_dim.
double yarn_temperature(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void parse_yarn(const Json& rope, std::int64_t max_position, const std::string& where, RopeConfig* out) {
  out->factor = given(rope, "factor")
                    ? require_positive(json_number(rope, "factor", where), "factor", where)
                    : static_cast<double>(max_position) / static_cast<double>(out->original_max_position);
  out->beta_fast = number_or(rope, "beta_fast", where, 32.0);
  out->beta_slow = number_or(rope, "beta_slow", where, 1.0);
  out->truncate = json_bool(rope, "truncate", where, true);
  const double mscale = json_number(rope, "mscale", where, 0.0);
  const double mscale_all_dim = json_number(rope, "mscale_all_dim", where, 0.0);
  out->temperature = yarn_temperature(out->factor, mscale_all_dim);
  if (given(rope, "attention_factor")) {
    out->attention_factor = json_number(rope, "attention_factor", where);
  } else if (mscale != 0.0 && mscale_all_dim != 0.0) {
    out->attention_factor = yarn_temperature(out->factor, mscale) / out->temperature;
  } else {
    out->attention_factor = yarn_temperature(out->factor, 1.0);
  }
  require_positive(out->attention_factor, "attention_factor", where);
}

// [P], all positive. check_rope_factors() checks the count once the heads are known.
std::vector<double> parse_factors(const Json& rope, const char* key, const std::string& where) {
  std::vector<double> factors;
  for (const Json& item : json_array(rope, key, where)) {
    if (!item.is_number()) {
      throw InputError(where + ": '" + key + "' holds " + item.type_name() + ", expected only numbers");
    }
    factors.push_back(require_positive(item.get<double>(), key, where));
  }
  return factors;
}

// LongRoPE (Ding et al. 2024, arXiv 2402.13753): one factor per wavelength, and an attention temperature from the ratio
// of the lengths.
void parse_longrope(const Json& rope, std::int64_t max_position, const std::string& where, RopeConfig* out) {
  const double original = static_cast<double>(out->original_max_position);
  out->short_factor = parse_factors(rope, "short_factor", where);
  out->long_factor = parse_factors(rope, "long_factor", where);
  const double ratio = static_cast<double>(max_position) / original;
  const double factor = out->factor =
      given(rope, "factor") ? require_positive(json_number(rope, "factor", where), "factor", where) : ratio;
  if (given(rope, "attention_factor")) {
    out->attention_factor = require_positive(json_number(rope, "attention_factor", where), "attention_factor", where);
  } else if (factor > 1.0) {
    if (out->original_max_position < 2) {
      throw InputError(where + ": 'original_max_position_embeddings' is 1, expected at least 2 with longrope");
    }
    out->attention_factor = std::sqrt(1.0 + std::log(factor) / std::log(original));
  }
}

// The length before scaling: the top-level key, then the key beside the factor, then the model's maximum.
std::int64_t original_length(const Json& config, const Json& rope, std::int64_t max_position,
                             const std::string& where) {
  constexpr const char* kKey = "original_max_position_embeddings";
  std::int64_t length = json_int(rope, kKey, where, max_position);
  length = json_int(config, kKey, where, length);
  if (length <= 0) throw InputError(where + ": '" + kKey + "' is " + std::to_string(length) + ", expected at least 1");
  return length;
}

// One set of parameters. `config` has the keys beside it.
RopeConfig parse_parameters(const Json& config, const Json& rope, const RopeDefaults& defaults,
                            std::int64_t max_position, const std::string& where) {
  RopeConfig out;
  out.theta = require_positive(json_number(rope, "rope_theta", where, defaults.theta), "rope_theta", where);
  if (out.theta <= 1.0) throw InputError(where + ": 'rope_theta' must be greater than 1");
  const double whole = json_number(config, "partial_rotary_factor", where, defaults.partial);
  out.partial = json_number(rope, "partial_rotary_factor", where, whole);
  if (!defaults.reads_partial && out.partial != 1.0) {
    throw InputError(where + ": 'partial_rotary_factor' other than 1 is not supported for this architecture");
  }
  if (!(out.partial > 0.0 && out.partial <= 1.0)) {
    throw InputError(where + ": 'partial_rotary_factor' is " + std::to_string(out.partial) +
                     ", expected more than 0 and at most 1");
  }

  const std::string old_type = json_string(rope, "type", where, "default");
  out.type = parse_type(json_string(rope, "rope_type", where, old_type), where);
  if (out.type == RopeType::kLlama3 || out.type == RopeType::kYarn || out.type == RopeType::kLongRope) {
    out.original_max_position = original_length(config, rope, max_position, where);
  }
  if (out.type == RopeType::kDynamic) out.original_max_position = max_position;
  if (out.type == RopeType::kLinear || out.type == RopeType::kLlama3 || out.type == RopeType::kDynamic) {
    out.factor = require_positive(json_number(rope, "factor", where), "factor", where);
  }
  if (out.type == RopeType::kProportional && given(rope, "factor")) {
    out.factor = require_positive(json_number(rope, "factor", where), "factor", where);
  }
  if (out.type == RopeType::kLlama3) {
    out.low_freq_factor = require_positive(json_number(rope, "low_freq_factor", where), "low_freq_factor", where);
    out.high_freq_factor = require_positive(json_number(rope, "high_freq_factor", where), "high_freq_factor", where);
    if (out.high_freq_factor <= out.low_freq_factor) {
      throw InputError(where + ": 'high_freq_factor' must be greater than 'low_freq_factor'");
    }
  }
  if (out.type == RopeType::kYarn) parse_yarn(rope, max_position, where, &out);
  if (out.type == RopeType::kLongRope) parse_longrope(rope, max_position, where, &out);
  return out;
}

}  // namespace

RopeConfig parse_rope(const Json& config, const RopeDefaults& defaults, std::int64_t max_position,
                      const std::string& where) {
  static const Json kNone = Json::object();
  const Json* source = non_empty_object(config, "rope_scaling", where);
  if (source == nullptr) source = non_empty_object(config, "rope_parameters", where);
  const Json& rope = source == nullptr ? kNone : *source;
  if (rope.contains("full_attention") || rope.contains("sliding_attention")) {
    throw InputError(where + ": rope parameters that differ by layer type are not supported for this architecture");
  }
  RopeDefaults beside = defaults;
  beside.theta = json_number(config, "rope_theta", where, defaults.theta);
  return parse_parameters(config, rope, beside, max_position, where);
}

void check_rope_factors(const RopeConfig& rope, std::int64_t head_dim, const std::string& where) {
  const std::int64_t turning = rope.turning(head_dim);
  if (rope.type == RopeType::kDynamic && turning <= 2) {
    throw InputError(where + ": " + std::to_string(turning) +
                     " channels turn with position, expected more than 2 with 'dynamic' RoPE");
  }
  if (rope.type != RopeType::kLongRope) return;
  for (const auto& [key, factors] :
       {std::pair("short_factor", &rope.short_factor), {"long_factor", &rope.long_factor}}) {
    if (std::ssize(*factors) == turning / 2) continue;
    throw InputError(where + ": '" + key + "' has " + std::to_string(factors->size()) + " numbers, expected " +
                     std::to_string(turning / 2) + ", one for each pair of channels that turns");
  }
}

void parse_layered_rope(const Json& config, std::int64_t max_position, const std::string& where,
                        const LayeredTheta& theta, RopeConfig* global, RopeConfig* local) {
  Json full = Json::object(), sliding = Json::object();
  if (const Json* parameters = non_empty_object(config, "rope_parameters", where)) {
    const Json* by_type[] = {non_empty_object(*parameters, "full_attention", where),
                             non_empty_object(*parameters, "sliding_attention", where)};
    if (by_type[0] == nullptr && by_type[1] == nullptr) {
      throw InputError(where +
                       ": 'rope_parameters' has neither full_attention nor sliding_attention, expected RoPE numbers "
                       "for both types of layer");
    }
    if (by_type[0] != nullptr) full = *by_type[0];
    if (by_type[1] != nullptr) sliding = *by_type[1];
  }
  if (const Json* scaling = non_empty_object(config, "rope_scaling", where)) full.update(*scaling);
  const RopeDefaults of_full{.theta = json_number(config, "rope_theta", where, theta.global),
                             .reads_partial = theta.global_partial};
  const RopeDefaults of_sliding{.theta = json_number(config, "rope_local_base_freq", where, theta.local)};
  *global = parse_parameters(config, full, of_full, max_position, where);
  *local = parse_parameters(config, sliding, of_sliding, max_position, where);
}

}  // namespace oscar
