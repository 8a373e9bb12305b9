#include "apps/options/config_check.h"

#include <algorithm>

#include "base/foreign_text.h"

namespace oscar {
namespace {

constexpr std::string_view kSpaces = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// The end of the array that opens at `at`: the position of its closing bracket. closed: whether there is one; nested:
// another array opens first, and `at` is its position.
struct ArrayEnd {
  std::size_t at;
  bool closed, nested;
};

ArrayEnd end_of_array(std::string_view text, std::size_t at) {
  char quote = '\0';
  for (++at; at < text.size(); ++at) {
    const char c = text[at];
    if (quote != '\0') {
      if (c == '\\' && quote == '"') {
        ++at;
      } else if (c == quote) {
        quote = '\0';
      }
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '#') {
      at = std::min(text.find('\n', at), text.size() - 1);
    } else if (c == '[') {
      return {at, false, true};
    } else if (c == ']') {
      return {at, true, false};
    }
  }
  return {text.size(), false, false};
}

// The position after the quoted text that begins at `at`; npos if it does not end. Texts in three quotes may have
// several lines.
std::size_t end_of_text(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string three(3, quote);
  const bool lines = text.substr(at).starts_with(three);
  const std::string_view close = lines ? std::string_view(three) : text.substr(at, 1);
  for (at += close.size(); at < text.size(); ++at) {
    if (text.substr(at).starts_with(close)) return at + close.size();
    if (text[at] == '\n' && !lines) break;
    if (text[at] == '\\' && quote == '"') ++at;
  }
  return std::string_view::npos;
}

}  // namespace

std::string config_fault(std::string_view text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const std::string_view shown = trimmed(line);
    const std::size_t equals = line.find('=');
    const bool assigns = !shown.empty() && shown.front() != '#' && shown.front() != ';' && shown.front() != '[' &&
                         equals != std::string_view::npos;
    const std::string_view value = assigns ? trimmed(line.substr(equals + 1)) : std::string_view();
    const bool array = value.starts_with('['), quoted = value.starts_with('"') || value.starts_with('\'');
    if (!array && !quoted) {
      begin = end + 1;
      continue;
    }
    const auto open = static_cast<std::size_t>(value.data() - text.data());
    const std::string where =
        "line " + std::to_string(1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(open), '\n')) +
        (array ? ": the array of " : ": the text of ") + quote_name(trimmed(line.substr(0, equals)));
    if (quoted) {
      const std::size_t after = end_of_text(text, open);
      if (after == std::string_view::npos) return where + " is not closed";
      begin = std::min(text.find('\n', after), text.size() - 1) + 1;
      continue;
    }
    const ArrayEnd close = end_of_array(text, open);
    if (close.nested) return where + " holds an array, which no option takes";
    if (!close.closed) return where + " is not closed";
    begin = std::min(text.find('\n', close.at), text.size() - 1) + 1;
  }
  return {};
}

}  // namespace oscar
