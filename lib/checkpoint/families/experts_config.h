// Keys of config.json that families with experts share.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace oscar {

struct ExpertDefaults {
  std::int64_t count, per_token, intermediate;
  bool own_size = true;  // moe_intermediate_size is read
  const char* count_key = "num_experts";
  const char* per_token_key = "num_experts_per_tok";
};

// The keys above (the count also as num_experts or num_local_experts, the other also as num_experts_per_tok) and
// moe_intermediate_size; experts in every layer. InputError for numbers that make no sense.
void read_experts(const Json& config, const std::string& where, const ExpertDefaults& defaults, ModelConfig* out);

struct GroupDefaults {
  std::int64_t count, chosen;
};

// n_group and topk_group, after read_experts() and group_judges. InputError for groups that do not fit the experts.
void read_expert_groups(const Json& config, const std::string& where, const GroupDefaults& defaults, ExpertConfig* out);

// Which layers have experts: each decoder_sparse_step-th (1), but none of mlp_only_layers. InputError as above.
void read_sparse_layers(const Json& config, const std::string& where, ModelConfig* out);

// Size of the expert that every token passes, under the key shared_expert_intermediate_size.
void read_shared_size(const Json& config, const std::string& where, std::int64_t fallback, ExpertConfig* out);

// Experts that every token passes, as one of their width together; `key` says how many, `fallback` where it is missing.
void read_shared_experts(const Json& config, const char* key, const std::string& where, std::int64_t fallback,
                         ExpertConfig* out);

}  // namespace oscar
