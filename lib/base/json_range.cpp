#include "base/json_range.h"

#include <cmath>

#include "base/errors.h"

namespace oscar {

std::int64_t json_int_within(const Json& object, const char* key, const std::string& where, std::int64_t low,
                             std::int64_t high) {
  const std::int64_t value = json_int(object, key, where);
  if (value < low || value > high) {
    throw InputError(where + ": '" + key + "' is " + std::to_string(value) + ", expected " + std::to_string(low) +
                     " to " + std::to_string(high));
  }
  return value;
}

double require_positive(double value, const char* key, const std::string& where) {
  if (!std::isfinite(value) || value <= 0.0) {
    throw InputError(where + ": '" + key + "' is " + std::to_string(value) + ", expected a positive number");
  }
  return value;
}

}  // namespace oscar
