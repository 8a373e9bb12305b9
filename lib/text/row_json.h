// JSON data rows in files of prompts. parse_python_json() reads one: pandas writes NaN and Infinity.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace oscar {

// Whether the member exists and has a value. null and NaN mark missing values.
bool has_value(const Json& object, std::string_view key);

// Whether it exists and is neither missing nor empty.
bool says(const Json& object, std::string_view key);

// Whether a member of a message is only for programs, so that no template misses it.
bool is_label(std::string_view key);

// The parsed value of a JSON text with an object or array; otherwise the value itself.
Json decoded(const Json& value, const std::string& where);

// The texts of the values in a file that is one array, or values one after another. InputError if the text ends inside
// a value, or for anything else between or after the values of an array. Does not check the values themselves.
std::vector<std::string_view> split_json_values(std::string_view text, const std::string& where);

}  // namespace oscar
