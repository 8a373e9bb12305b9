// 'layer_types' of a config.json, which says what kind of attention each layer has, and similar lists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

// [layers] true for layers of type `type`; empty when the key is absent or null. others: the other allowed types.
// InputError for any other type or a list of the wrong length.
std::vector<bool> layers_of_type(const Json& config, const std::string& where, std::int64_t layers,
                                 const std::string& type, const std::vector<std::string>& others,
                                 const char* key = "layer_types");

}  // namespace oscar
