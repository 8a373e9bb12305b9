// Keys of config.json that families with experts share.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace oscar {

struct ExpertDefaults {
  std::int64_t count, per_token, intermediate;
  bool own_size = true;  // moe_intermediate_size is read
};

// num_experts or num_local_experts, num_experts_per_tok, moe_intermediate_size; experts in every layer. InputError for
// numbers that make no sense.
void read_experts(const Json& config, const std::string& where, const ExpertDefaults& defaults, ModelConfig* out);

}  // namespace oscar
