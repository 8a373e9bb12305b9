#include "checkpoint/families/experts_config.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json.h"

namespace oscar {
namespace {

std::int64_t read_or(const Json& config, const char* key, const std::string& where, std::int64_t most,
                     std::int64_t fallback, std::int64_t least = 1) {
  const auto it = config.find(key);
  return it == config.end() || it->is_null() ? fallback : json_int_within(config, key, where, least, most);
}

}  // namespace

void read_experts(const Json& config, const std::string& where, const ExpertDefaults& defaults, ModelConfig* out) {
  ExpertConfig& e = out->experts;
  constexpr std::int64_t kMost = 4096;
  // transformers accepts all names; configs contain one of them.
  e.count = defaults.count;
  for (const char* key : {"num_local_experts", "num_experts", defaults.count_key}) {
    e.count = read_or(config, key, where, kMost, e.count);
  }
  e.per_token = read_or(config, "num_experts_per_tok", where, kMost, defaults.per_token);
  e.per_token = read_or(config, defaults.per_token_key, where, kMost, e.per_token);
  if (e.per_token > e.count) {
    throw InputError(where + ": '" + defaults.per_token_key + "' is " + std::to_string(e.per_token) +
                     ", but there are " + std::to_string(e.count) + " experts");
  }
  e.intermediate = defaults.own_size
                       ? read_or(config, "moe_intermediate_size", where, std::int64_t{1} << 24, defaults.intermediate)
                       : defaults.intermediate;
  e.layers.assign(static_cast<std::size_t>(out->layers), true);
}

void read_expert_groups(const Json& config, const std::string& where, const GroupDefaults& defaults,
                        ExpertConfig* out) {
  ExpertConfig& e = *out;
  e.groups = json_int(config, "n_group", where, defaults.count);
  e.groups_chosen = json_int(config, "topk_group", where, defaults.chosen);
  const auto fits = [&] {
    if (e.groups < 1 || e.groups_chosen < 1 || e.groups_chosen > e.groups || e.count % e.groups != 0) return false;
    const std::int64_t size = e.count / e.groups;
    return e.groups_chosen == e.groups || (size >= e.best_of_group && e.per_token <= e.groups_chosen * size);
  };
  if (!fits()) {
    throw InputError(where + ": 'n_group' is " + std::to_string(e.groups) + " and 'topk_group' " +
                     std::to_string(e.groups_chosen) + ", which does not fit " + std::to_string(e.per_token) + " of " +
                     std::to_string(e.count) + " experts for each token");
  }
}

void read_sigmoid_experts(const Json& config, const std::string& where, const SigmoidExperts& defaults,
                          ModelConfig* out) {
  read_experts(config, where,
               {.count = defaults.count,
                .per_token = defaults.per_token,
                .intermediate = defaults.intermediate,
                .count_key = "n_routed_experts"},
               out);
  ExpertConfig& e = out->experts;
  require_word(config, "scoring_func", where, "sigmoid");
  require_word(config, "topk_method", where, "noaux_tc");
  read_expert_groups(config, where, defaults.groups, &e);
  e.normalized = json_bool(config, "norm_topk_prob", where, true);
  e.least_sum = 1e-20;
  e.scaling = json_number(config, "routed_scaling_factor", where, defaults.scaling);
  read_shared_experts(config, "n_shared_experts", where, 1, &e);
}

void read_dense_first(const Json& config, const std::string& where, std::int64_t dense, ModelConfig* out) {
  const std::int64_t first = json_int(config, "first_k_dense_replace", where, dense);
  if (const std::int64_t step = json_int(config, "moe_layer_freq", where, 1); step != 1) {
    throw InputError(where + ": 'moe_layer_freq' is " + std::to_string(step) + ", but only 1 is supported");
  }
  for (std::int64_t i = 0; i < out->layers; ++i) out->experts.layers[static_cast<std::size_t>(i)] = i >= first;
}

void require_word(const Json& config, const char* key, const std::string& where, const std::string& expected) {
  const std::string word = json_string(config, key, where, expected);
  if (word == expected) return;
  throw InputError(where + ": '" + key + "' is " + quote_name(word) + ", but only " + expected +
                   " is supported for this architecture");
}

void read_sparse_layers(const Json& config, const std::string& where, ModelConfig* out) {
  const std::int64_t step = json_int(config, "decoder_sparse_step", where, 1);
  if (step < 1)
    throw InputError(where + ": 'decoder_sparse_step' is " + std::to_string(step) + ", expected at least 1");
  std::vector<bool>& sparse = out->experts.layers;
  for (std::int64_t i = 0; i < out->layers; ++i) sparse[static_cast<std::size_t>(i)] = (i + 1) % step == 0;
  const auto dense = config.find("mlp_only_layers");
  if (dense == config.end() || dense->is_null()) return;
  if (!dense->is_array()) throw InputError(where + ": 'mlp_only_layers' must be a list of layer numbers");
  for (const Json& item : *dense) {
    if (!item.is_number_integer()) throw InputError(where + ": 'mlp_only_layers' must be a list of layer numbers");
    const auto layer = item.get<std::int64_t>();
    if (layer >= 0 && layer < out->layers) sparse[static_cast<std::size_t>(layer)] = false;
  }
}

void read_shared_size(const Json& config, const std::string& where, std::int64_t fallback, ExpertConfig* out) {
  out->shared = read_or(config, "shared_expert_intermediate_size", where, std::int64_t{1} << 24, fallback);
}

void read_shared_experts(const Json& config, const char* key, const std::string& where, std::int64_t fallback,
                         ExpertConfig* out) {
  out->shared = out->intermediate * read_or(config, key, where, 1024, fallback, 0);
}

}  // namespace oscar
