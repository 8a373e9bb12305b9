// JSON as Python's json module reads it.
#include <algorithm>
#include <array>

#include "base/json_rules.h"

namespace oscar {
namespace {

// Nonstandard numbers outside strings become texts of this form, which JsonRules::kPython reads back.
std::string with_marked_numbers(std::string_view text) {
  constexpr std::array<std::string_view, 3> kNames = {"NaN", "-Infinity", "Infinity"};
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '"') {
      const std::size_t end = std::min(end_of_json_string(text, at), text.size());
      out += text.substr(at, end - at);
      at = end;
      continue;
    }
    const auto name =
        std::find_if(kNames.begin(), kNames.end(), [&](std::string_view n) { return text.substr(at).starts_with(n); });
    if (name == kNames.end()) {
      out += text[at++];
    } else {
      out += '"' + std::string(kNumberMark) + std::string(*name) + '"';
      at += name->size();
    }
  }
  return out;
}

}  // namespace

std::size_t end_of_json_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

Json parse_python_json(std::string_view text, const std::string& where, int max_depth) {
  const bool marked = text.find(kNumberMark) != std::string_view::npos;  // could be mistaken for a number
  const bool has_numbers =
      text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
  if (!has_numbers || marked) return parse_json_by(JsonRules::kLastKey, text, where, max_depth);
  return parse_json_by(JsonRules::kPython, with_marked_numbers(text), where, max_depth);
}

Json read_python_json(const fs::path& path, std::uint64_t max_bytes) {
  return parse_python_json(read_file(path, max_bytes), path.string());
}

}  // namespace oscar
