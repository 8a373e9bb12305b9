// 'layer_types' of a config.json, which tells layers of one kind of attention from the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

// [layers] true where the layer is of type `type`; empty when the key is absent or null. others: what else a layer may
// be. InputError for another type, and for a list of another length.
std::vector<bool> layers_of_type(const Json& config, const std::string& where, std::int64_t layers,
                                 const std::string& type, const std::vector<std::string>& others);

}  // namespace oscar
