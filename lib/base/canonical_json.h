// One text for one JSON value, whichever program wrote it: what hashes over JSON are taken of.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/json.h"

namespace oscar {

// Keys sorted by their bytes, every number a double.
nlohmann::json sorted_json(const Json& value);

// sorted_json() without spaces, each double in its shortest form, text in UTF-8. python/oscar_kv/canonical_json.py
// writes the same.
std::string canonical_json(const Json& value);

}  // namespace oscar
