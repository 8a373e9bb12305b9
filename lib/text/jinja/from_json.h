// JSON as values of a template.
#pragma once

#include <string_view>

#include "base/json.h"
#include "text/jinja/value.h"

namespace oscar::jinja {

// TemplateError for a whole number from 2^63. Larger ones, which Python would keep exactly, are floats in Json already:
// see has_huge_integer.
Value from_json(const Json& json);

// Whether JSON text holds a whole number of more than 64 bits.
bool has_huge_integer(std::string_view text);

}  // namespace oscar::jinja
