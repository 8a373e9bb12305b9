#include "text/jinja/value.h"

#include <algorithm>

namespace oscar::jinja {

Value from_json(const Json& json) {
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number()) {
    if (json.is_number_unsigned() && json.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      throw TemplateError("the number " + json.dump() + " needs more than 63 bits and is not supported");
    }
    return json.is_number_float() ? Value(json.get<double>()) : Value(json.get<std::int64_t>());
  }
  if (json.is_array()) {
    List items;
    for (const Json& item : json) items.push_back(from_json(item));
    return items;
  }
  Dict members;
  for (const auto& [key, value] : json.items()) members.emplace_back(key, from_json(value));
  return members;
}

bool has_huge_integer(std::string_view text) {
  constexpr std::string_view kMost = "18446744073709551615";
  bool in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      at += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c >= '0' && c <= '9') {
      const std::size_t end = std::min(text.find_first_not_of("0123456789.eE+-", at), text.size());
      const std::string_view number = text.substr(at, end - at);
      at = end - 1;
      if (number.find_first_of(".eE") != std::string_view::npos) continue;
      if (number.size() > kMost.size() || (number.size() == kMost.size() && number > kMost)) return true;
    }
  }
  return false;
}

}  // namespace oscar::jinja
