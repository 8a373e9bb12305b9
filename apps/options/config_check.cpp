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
    if (value.empty() || value.front() != '[') {
      begin = end + 1;
      continue;
    }
    const auto open = static_cast<std::size_t>(value.data() - text.data());
    const ArrayEnd close = end_of_array(text, open);
    const std::string where =
        "line " + std::to_string(1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(open), '\n')) +
        ": the array of " + quote_name(trimmed(line.substr(0, equals)));
    if (close.nested) return where + " holds an array, which no option takes";
    if (!close.closed) return where + " is not closed";
    begin = std::min(text.find('\n', close.at), text.size() - 1) + 1;
  }
  return {};
}

}  // namespace oscar
