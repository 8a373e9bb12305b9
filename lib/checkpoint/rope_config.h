// Rotary position parameters of config.json.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace oscar {

// What a family's config.json leaves unsaid, and which keys it has.
struct RopeDefaults {
  double theta = 10000.0;
  bool reads_partial = false;  // partial_rotary_factor
  double partial = 1.0;
};

// Reads rope_parameters (transformers v5) or rope_scaling with rope_theta (v4); a non-empty rope_scaling wins, as it
// does in transformers. InputError for a type other than default, linear, llama3, yarn, longrope, dynamic,
// proportional, or values out of range.
RopeConfig parse_rope(const Json& config, const RopeDefaults& defaults, std::int64_t max_position,
                      const std::string& where);

// InputError unless longrope has one factor for each pair of channels that turns, and dynamic more than one pair.
void check_rope_factors(const RopeConfig& rope, std::int64_t head_dim, const std::string& where);

struct LayeredTheta {
  double global, local;
  bool global_partial = false;  // partial_rotary_factor of the global layers is read
};

// The same of families whose sliding layers have a RoPE of their own (Gemma 3): rope_parameters by layer type (v5), or
// rope_theta with rope_scaling for the global layers and rope_local_base_freq for the others (v4).
void parse_layered_rope(const Json& config, std::int64_t max_position, const std::string& where,
                        const LayeredTheta& theta, RopeConfig* global, RopeConfig* local);

}  // namespace oscar
