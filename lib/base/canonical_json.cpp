#include "base/json.h"

namespace oscar {

nlohmann::json sorted_json(const Json& value) {
  if (value.is_number()) return value.get<double>();
  nlohmann::json out;
  if (value.is_object()) {
    out = nlohmann::json::object();
    for (const auto& [key, item] : value.items()) out[key] = sorted_json(item);
  } else if (value.is_array()) {
    out = nlohmann::json::array();
    for (const Json& item : value) out.push_back(sorted_json(item));
  } else if (value.is_string()) {
    out = value.get<std::string>();
  } else if (value.is_boolean()) {
    out = value.get<bool>();
  }
  return out;
}

std::string canonical_json(const Json& value) { return sorted_json(value).dump(); }

}  // namespace oscar
