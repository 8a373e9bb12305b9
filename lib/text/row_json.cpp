#include "text/row_json.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/interrupt.h"
#include "base/json_rules.h"

namespace oscar {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

}  // namespace

bool has_value(const Json& object, std::string_view key) {
  const Json& value = json_member(object, key);
  return !value.is_null() && !(value.is_number_float() && std::isnan(value.get<double>()));
}

bool says(const Json& object, std::string_view key) {
  const Json& value = json_member(object, key);
  return has_value(object, key) && value != Json("") && !(value.is_structured() && value.empty());
}

bool is_label(std::string_view key) { return is_one_of(key, " role id type status name tool_call_id weight "); }

Json decoded(const Json& value, const std::string& where) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || (text[first] != '[' && text[first] != '{')) return value;
  try {
    return parse_python_json(text, where);
  } catch (const InputError&) {
    return value;  // ordinary text that starts with a bracket
  }
}

std::vector<std::string_view> split_json_values(std::string_view text, const std::string& where) {
  std::vector<std::string_view> values;
  std::size_t at = 0;
  const auto skip_spaces = [&] { at = std::min(text.find_first_not_of(kSpaces, at), text.size()); };
  const auto fail = [&](const std::string& what) {
    throw InputError(where + ": is no array of JSON rows: " + what + " at byte " + std::to_string(at));
  };
  skip_spaces();
  const bool array = at < text.size() && text[at] == '[';
  at += array ? 1 : 0;
  while (true) {
    if (interrupt_requested()) throw InterruptedError("interrupted while prompts were read; run the command again");
    skip_spaces();
    if (array && at < text.size() && text[at] == ']' && values.empty()) break;
    if (at == text.size()) {
      if (array) fail("it ends too early");
      return values;
    }
    const std::size_t begin = at;
    for (int depth = 0; at < text.size();) {
      const char c = text[at];
      if (c == '"') {
        at = end_of_json_string(text, at);
        if (at == std::string_view::npos) {
          at = begin;
          fail("a row with a text that does not end begins");
        }
      } else {
        if (depth == 0 && (c == ',' || c == ']' || (at > begin && kSpaces.find(c) != std::string_view::npos))) break;
        if (c == '{' || c == '[') ++depth;
        if (c == '}' || c == ']') --depth;
        ++at;
      }
      if (depth == 0 && (text[at - 1] == '}' || text[at - 1] == ']' || text[at - 1] == '"')) break;
    }
    if (at == begin) fail("a row is missing");
    values.push_back(text.substr(begin, at - begin));
    if (!array) continue;
    skip_spaces();
    if (at < text.size() && text[at] == ',') {
      ++at;
      continue;
    }
    if (at == text.size() || text[at] != ']') fail("expected ',' or ']'");
    break;
  }
  ++at;  // after the array
  skip_spaces();
  if (at != text.size()) fail("something follows it");
  return values;
}

}  // namespace oscar
