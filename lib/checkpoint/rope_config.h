// RoPE parameters of config.json.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace oscar {

// A family's defaults and the keys that it has.
struct RopeDefaults {
  double theta = 10000.0;
  bool reads_partial = false;  // partial_rotary_factor
  double partial = 1.0;
};

// Reads rope_parameters (transformers v5) or rope_scaling with rope_theta (v4). As in transformers, a non-empty
// rope_scaling takes precedence. InputError for values out of range, and for types other than default, linear, llama3,
// yarn, longrope, dynamic and proportional.
RopeConfig parse_rope(const Json& config, const RopeDefaults& defaults, std::int64_t max_position,
                      const std::string& where);

// InputError unless longrope has one factor per rotated pair of channels, and dynamic has more than one pair.
void check_rope_factors(const RopeConfig& rope, std::int64_t head_dim, const std::string& where);

struct LayeredTheta {
  double global, local;
  bool global_partial = false;  // read partial_rotary_factor of the global layers
};

// The same for families whose sliding-window layers have a separate RoPE (Gemma 3). v5: rope_parameters by layer type.
// v4: rope_theta with rope_scaling for global layers, and rope_local_base_freq for the others.
void parse_layered_rope(const Json& config, std::int64_t max_position, const std::string& where,
                        const LayeredTheta& theta, RopeConfig* global, RopeConfig* local);

}  // namespace oscar
