// JSON of data rows, read as Python's json module reads it: beside what the standard has, the numbers NaN, Infinity and
// -Infinity, which pandas writes, and keys that repeat, of which the last one counts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace oscar {

// InputError, beginning with `where`, as parse_json().
Json parse_row_json(std::string_view text, const std::string& where);

// Whether the member is there with a value: neither null nor NaN, which stand for missing ones.
bool has_value(const Json& object, std::string_view key);

// The texts of the values in a file that is one array, or values one after another. InputError where the text ends
// inside a value, or anything stands between or behind the values of an array; the values themselves are not checked.
std::vector<std::string_view> split_json_values(std::string_view text, const std::string& where);

}  // namespace oscar
