// JSON that is read less strictly than parse_json() of json.h does.
#pragma once

#include "base/json.h"

namespace oscar {

// kLastKey: of a key that repeats the last value counts, in the place of the first one, as in Python. kPython: also
// texts of kNumberMark and a name (NaN, Infinity, -Infinity) are that number.
enum class JsonRules { kStrict, kLastKey, kPython };
constexpr std::string_view kNumberMark = "oscar-number:";

// As parse_json(), by these rules.
Json parse_json_by(JsonRules rules, std::string_view text, const std::string& where, int max_depth = 64);

}  // namespace oscar
