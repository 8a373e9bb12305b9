#include "checkpoint/layer_types.h"

#include <algorithm>

#include "base/errors.h"
#include "base/foreign_text.h"

namespace oscar {

std::vector<bool> layers_of_type(const Json& config, const std::string& where, std::int64_t layers,
                                 const std::string& type, const std::vector<std::string>& others, const char* key) {
  const auto types = config.find(key);
  if (types == config.end() || types->is_null()) return {};
  if (!types->is_array() || types->size() != static_cast<std::size_t>(layers)) {
    throw InputError(where + ": '" + key + "' has " + std::to_string(types->is_array() ? types->size() : 0) +
                     " entries, expected one for each of " + std::to_string(layers) + " layers");
  }
  std::vector<bool> found;
  for (const Json& item : *types) {
    const std::string name = item.is_string() ? item.get<std::string>() : item.dump();
    if (name != type && std::find(others.begin(), others.end(), name) == others.end()) {
      std::string known;
      for (const std::string& other : others) known += other + ", ";
      throw InputError(where + ": the layer type " + quote_name(name) +
                       " is not supported for this architecture; supported are " + known + type);
    }
    found.push_back(name == type);
  }
  return found;
}

}  // namespace oscar
