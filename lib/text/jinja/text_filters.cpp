// Text filters that few templates need, and numbers in text.
#include <charconv>
#include <cmath>

#include "base/budget.h"
#include "base/markup.h"
#include "text/jinja/builtins.h"
#include "text/unicode/unicode.h"

namespace oscar::jinja {
namespace {

Value truncated(const std::string& text, Arguments& arguments) {
  const Value length = arguments.take("length", std::int64_t{255});
  const bool anywhere = arguments.take("killwords", false).truth();
  const std::string end = arguments.take("end", "...").text();
  const Value given = arguments.take("leeway", None{});
  const Value leeway = given.is_none() ? Value(std::int64_t{5}) : given;
  const std::int64_t keep = length.is_integral() ? length.integer() - text_length(end) : -1;
  if (keep < 0 || !leeway.is_integral() || leeway.integer() < 0 || leeway.integer() > 1000000000) {
    throw TemplateError("truncate needs a length that its end fits into, and a leeway of 0 or more");
  }
  if (text_length(text) - leeway.integer() <= length.integer()) return text;
  std::string kept = slice_text(text, Value(), keep, Value());
  if (!anywhere) kept = kept.substr(0, kept.rfind(' '));
  return kept + end;
}

Value word_count(const std::string& text) {
  if (!is_ascii(text)) throw TemplateError("wordcount of text beyond ASCII is not supported");
  std::int64_t words = 0;
  bool inside = false;
  for (const char c : text) {
    const bool letter = is_word(static_cast<unsigned char>(c));
    words += letter && !inside ? 1 : 0;
    inside = letter;
  }
  return words;
}

Value formatted(const std::string& text, Arguments& arguments) {
  Dict named = std::exchange(arguments.named(), {});
  const List items = arguments.take_rest().list();
  if (!named.empty() && !items.empty()) throw TemplateError("format takes values or named values, not both");
  return percent_format(text, named.empty() ? Value(items, Sequence::kTuple) : Value(std::move(named)));
}

}  // namespace

std::string escape(const std::string& text) {
  std::string out = with_entities(text);
  Budget::spend(2 * text.size());
  check_text_size(out.size());
  return out;
}

std::optional<Value> text_filter(const std::string& name, const Value& subject, Arguments& arguments) {
  if (name == "escape" || name == "e" || name == "forceescape") return Value::markup(escape(subject.text()));
  if (name == "format") return formatted(subject.text(), arguments);
  if (name == "truncate") {
    if (!subject.is_string()) throw TemplateError("truncate of a " + subject.type_name() + " is not supported");
    return truncated(subject.string(), arguments);
  }
  if (name == "wordcount") return word_count(subject.text());
  if (name == "center") {
    const Value width = arguments.take("width", std::int64_t{80});
    return call_method(subject.text(), "center", Arguments("the filter 'center'", {width}));
  }
  return std::nullopt;
}

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
