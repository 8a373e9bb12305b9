#include "text/jinja/builtins.h"

#include "base/budget.h"

namespace oscar::jinja {

TextSearch::TextSearch(std::string_view needle, bool from_right)
    : needle_(needle), from_right_(from_right), border_(needle.size()) {
  Budget::spend(4 * needle.size());
  Budget::hold(4 * needle.size());
  std::uint32_t length = 0;
  for (std::size_t i = 1; i < needle_.size(); ++i) {
    while (length > 0 && needle_at(i) != needle_at(length)) length = border_[length - 1];
    if (needle_at(i) == needle_at(length)) ++length;
    border_[i] = length;
  }
}

// The number of characters up to the end of the first match, or npos. at(i) is the i-th character in search direction.
template <typename At>
std::size_t TextSearch::scan(std::size_t length, At at) const {
  std::size_t matched = 0, i = 0;
  for (; i < length && matched < needle_.size(); ++i) {
    while (matched > 0 && at(i) != needle_at(matched)) matched = border_[matched - 1];
    if (at(i) == needle_at(matched)) ++matched;
  }
  Budget::spend(10 + 2 * i);
  return matched == needle_.size() ? i : std::string_view::npos;
}

std::size_t TextSearch::find(std::string_view text, std::size_t from) const {
  const std::size_t end = scan(text.size() - from, [&](std::size_t i) { return text[from + i]; });
  return end == std::string_view::npos ? end : from + end - needle_.size();
}

std::size_t TextSearch::find_before(std::string_view text, std::size_t end) const {
  const std::size_t length = scan(end, [&](std::size_t i) { return text[end - 1 - i]; });
  return length == std::string_view::npos ? length : end - length;
}

}  // namespace oscar::jinja
