// Numbers in text.
#include <charconv>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/unicode/unicode.h"

namespace oscar::jinja {

std::optional<double> parse_float(const std::string& text) {
  std::string digits = strip(text, Value(), true, true);
  if (!is_ascii(digits)) throw TemplateError("a number in digits beyond ASCII is not supported");
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  const std::string name = lower(digits);
  if (name == "inf" || name == "infinity") return negative ? -HUGE_VAL : HUGE_VAL;
  if (name == "nan") return std::nan("");
  for (std::size_t i = digits.find('_'); i != std::string::npos; i = digits.find('_', i)) {  // 1_000
    const auto digit = [&](std::size_t k) { return k < digits.size() && digits[k] >= '0' && digits[k] <= '9'; };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
    digits.erase(i, 1);
  }
  double number = 0.0;
  const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (done.ec == std::errc::result_out_of_range) throw TemplateError("the number '" + digits + "' is not supported");
  if (done.ec != std::errc() || done.ptr != digits.data() + digits.size() || name.starts_with('i') ||
      name.starts_with('n')) {
    return std::nullopt;
  }
  return negative ? -number : number;
}

std::optional<std::int64_t> parse_integer(const std::string& text) {
  std::string digits = strip(text, Value(), true, true);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.erase(0, 1);
  for (std::size_t i = digits.find('_'); i != std::string::npos; i = digits.find('_', i)) {
    if (i == 0 || i + 1 >= digits.size() || digits[i + 1] == '_') return std::nullopt;
    digits.erase(i, 1);
  }
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  std::int64_t number = 0;
  const auto done = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (done.ec != std::errc()) throw TemplateError("an integer beyond 63 bits in a text is not supported");
  return negative ? -number : number;
}

}  // namespace oscar::jinja
