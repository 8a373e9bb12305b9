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

// Experts by corrected sigmoid scores from the best groups, beside shared ones (DeepSeek-V3, arXiv:2412.19437, section
// 2.1.2). InputError as above, and for another scoring_func or topk_method.
struct SigmoidExperts {
  std::int64_t count, per_token, intermediate;
  GroupDefaults groups;
  double scaling;
};
void read_sigmoid_experts(const Json& config, const std::string& where, const SigmoidExperts& defaults,
                          ModelConfig* out);

// Dense layers come first; layer first_k_dense_replace is the first with experts. InputError unless moe_layer_freq is
// 1.
void read_dense_first(const Json& config, const std::string& where, std::int64_t dense, ModelConfig* out);

// For values that the family fixes in code: InputError unless the key is absent, null or `expected`.
void require_word(const Json& config, const char* key, const std::string& where, const std::string& expected);

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
