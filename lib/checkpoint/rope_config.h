// Rotary position parameters of config.json.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace oscar {

// Reads rope_parameters (transformers v5) or rope_scaling with rope_theta (v4); a non-empty rope_scaling wins, as it
// does in transformers. InputError for a type other than default, linear, llama3, yarn, or values out of range.
RopeConfig parse_rope(const Json& config, std::int64_t max_position, const std::string& where);

}  // namespace oscar
