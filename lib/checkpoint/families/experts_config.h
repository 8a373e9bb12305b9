// Keys of config.json shared by families with experts.
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

// Reads the keys above and moe_intermediate_size; every layer has experts. The count may also be num_experts or
// num_local_experts, and the other key num_experts_per_tok. InputError for invalid numbers.
void read_experts(const Json& config, const std::string& where, const ExpertDefaults& defaults, ModelConfig* out);

struct GroupDefaults {
  std::int64_t count, chosen;
};

// Reads n_group and topk_group. Call it after read_experts(). InputError for groups that do not fit the experts.
void read_expert_groups(const Json& config, const std::string& where, const GroupDefaults& defaults, ExpertConfig* out);

// Reads which layers have experts: every decoder_sparse_step-th (default 1), except mlp_only_layers. InputError as
// above.
void read_sparse_layers(const Json& config, const std::string& where, ModelConfig* out);

// Reads the size of the shared expert from shared_expert_intermediate_size.
void read_shared_size(const Json& config, const std::string& where, std::int64_t fallback, ExpertConfig* out);

// Reads the number of shared experts from `key`, or uses `fallback`. They form one shared expert with the sum of their
// widths.
void read_shared_experts(const Json& config, const char* key, const std::string& where, std::int64_t fallback,
                         ExpertConfig* out);

}  // namespace oscar
