// Integers of untrusted JSON within bounds: one check and one message for every reader of sizes and counts.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"

namespace oscar {

// json_int() in [low, high]. InputError otherwise: "<where>: '<key>' is 7, expected 1 to 5".
std::int64_t json_int_within(const Json& object, const char* key, const std::string& where, std::int64_t low,
                             std::int64_t high);

// Returns `value`, the number under `key`. InputError unless it is finite and above 0: "<where>: '<key>' is -1.000000,
// expected a positive number".
double require_positive(double value, const char* key, const std::string& where);

}  // namespace oscar
