// Reads JSON less strictly than parse_json() in json.h.
#pragma once

#include "base/json.h"

namespace oscar {

// kLastKey: for a repeated key the last value counts and keeps the first position, as in Python. kPython: also reads a
// text of kNumberMark and a name (NaN, Infinity, -Infinity) as that number.
enum class JsonRules { kStrict, kLastKey, kPython };
constexpr std::string_view kNumberMark = "oscar-number:";

// parse_json() with these rules.
Json parse_json_by(JsonRules rules, std::string_view text, const std::string& where, int max_depth = 64);

}  // namespace oscar
