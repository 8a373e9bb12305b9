// JSON as Python's json module reads it.
#include <algorithm>

#include <array>

#include "base/foreign_text.h"
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

namespace {

// "column 7" for a text of one line, otherwise "line 3, column 7"; columns are bytes, counted from 1.
std::string place_of(std::string_view text, std::size_t at) {
  const std::string_view before = text.substr(0, at);
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = at - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::string place = "column " + std::to_string(column);
  return text.find('\n') == std::string_view::npos ? place : "line " + std::to_string(line) + ", " + place;
}

// The word of letters and digits around a position, or the single character there.
std::string_view word_at(std::string_view text, std::size_t at) {
  const auto in_word = [&](std::size_t i) {
    const char c = text[i];
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.' || c == '+';
  };
  constexpr std::size_t kMost = 40;
  std::size_t begin = at, end = at + 1;
  while (in_word(at) && begin > 0 && at - begin < kMost && in_word(begin - 1)) --begin;
  while (in_word(at) && end < text.size() && end - at < kMost && in_word(end)) ++end;
  return text.substr(begin, end - begin);
}

}  // namespace

std::string json_fault(std::string_view text, std::size_t bytes_read, std::string_view exception) {
  const auto says = [&](std::string_view words) { return exception.find(words) != std::string_view::npos; };
  const std::string begin = "is not valid JSON: ";
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return begin + "it is empty";
  const bool at_end = bytes_read > text.size() || says("unexpected end of input");
  if (says("missing closing quote")) return begin + "it ends inside a string";
  if (at_end && !says("ill-formed UTF-8")) return begin + "it ends too early";
  const std::size_t at = std::min(std::max<std::size_t>(bytes_read, 1), text.size()) - 1;
  const std::string place = begin + place_of(text, at) + ": ";
  if (says("ill-formed UTF-8")) return place + "a string holds bytes that are not UTF-8";
  if (says("control character")) return place + "a string holds a raw control character, which needs an escape";
  if (says("surrogate")) return place + "a \\u escape is one half of a surrogate pair";
  if (says("must be followed by 4 hex digits")) return place + "a \\u escape needs four hexadecimal digits";
  if (says("forbidden character after backslash")) return place + "a string holds an escape that JSON does not have";
  if (says("out_of_range")) return place + "the number " + quote_name(word_at(text, at)) + " is too large";
  if (says("invalid number"))
    return place + "the number " + quote_name(word_at(text, at)) + " is not written as in JSON";
  if (says("invalid literal")) {
    return place + "found " + quote_name(word_at(text, at)) +
           ", which is no string in double quotes, number, true, false or null";
  }
  return place + "found " + quote_name(word_at(text, at)) +
         ", which cannot stand there (a comma, colon or bracket is missing or left over)";
}

}  // namespace oscar
