// Converts JSON to template values.
#pragma once

#include <string_view>

#include "base/json.h"
#include "text/jinja/value.h"

namespace oscar::jinja {

// TemplateError for an integer of 2^63 or more. Json already stores larger integers, which Python would keep exactly,
// as floats: see has_huge_integer.
Value from_json(const Json& json);

// Whether JSON text contains an integer of more than 64 bits.
bool has_huge_integer(std::string_view text);

}  // namespace oscar::jinja
