// A canonical text for each JSON value, independent of the program that wrote it. JSON hashes use this text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"

namespace oscar {

// Sorts keys by their bytes and makes every number a double.
nlohmann::json sorted_json(const Json& value);

// sorted_json() without spaces, in UTF-8, with the shortest form of each double.
// python/oscar_kv/files/canonical_json.py writes the same text.
std::string canonical_json(const Json& value);

}  // namespace oscar
