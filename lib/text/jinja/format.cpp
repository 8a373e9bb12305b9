// Python's two ways of formatting values into text: text % values, and text.format(...).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/budget.h"
#include "text/jinja/builtins.h"
#include "text/unicode/unicode.h"

namespace oscar::jinja {
namespace {

constexpr std::int64_t kMostWidth = 10000;
constexpr int kMostPrecision = 100;

// One field: [[fill]align][sign][#][0][width][grouping][.precision][type].
struct Spec {
  std::string fill = " ";
  char align = 0, sign = '-', grouping = 0, type = 0;
  bool alternate = false;
  std::int64_t width = 0;
  int precision = -1;
};

[[noreturn]] void refuse(const std::string& what) { throw TemplateError("formatting " + what + " is not supported"); }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Reads the digits at `at` and advances it past them.
std::int64_t read_number(std::string_view text, std::size_t& at, std::int64_t most) {
  std::int64_t number = 0;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    number = number * 10 + (text[at] - '0');
    if (number > most) refuse("to more than " + std::to_string(most) + " characters");
  }
  return number;
}

std::string pad(const std::string& sign, const std::string& body, const Spec& spec, char align) {
  const std::int64_t room = spec.width - text_length(sign) - text_length(body);
  const std::int64_t before = align == '<' ? 0 : align == '^' ? room / 2 : room;
  std::string left, right;
  for (std::int64_t i = 0; i < room; ++i) (i < before ? left : right) += spec.fill;
  return align == '=' ? sign + left + body : left + sign + body + right;
}

// Separates thousands; `digits` may have a fraction.
std::string with_groups(const std::string& digits, char separator) {
  const std::size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (std::size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(whole);
}

std::string format_number(const Value& value, const Spec& spec) {
  static constexpr std::string_view kFloats = "eEfFgG%";
  const bool as_float = value.is_float() || kFloats.find(spec.type) != std::string_view::npos;
  const bool negative = as_float ? std::signbit(value.number()) : value.integer() < 0;
  std::string body;
  if (as_float) {
    const double magnitude = std::abs(value.number()) * (spec.type == '%' ? 100.0 : 1.0);
    if (!std::isfinite(magnitude)) refuse("a number that is not finite");
    if (spec.type == 0) {
      if (spec.precision >= 0) refuse("a float with a precision and no type");
      body = Value(magnitude).text();
    } else {
      if (kFloats.find(spec.type) == std::string_view::npos) refuse(std::string("a float as '") + spec.type + "'");
      if (spec.alternate) refuse("a float with '#'");
      const char format[] = {'%', '.', '*', spec.type == '%' ? 'f' : spec.type, 0};
      char text[512];
      std::snprintf(text, sizeof text, format, spec.precision < 0 ? 6 : spec.precision, magnitude);
      body = text;
    }
  } else {
    const int base = spec.type == 'x' || spec.type == 'X' ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
    if (spec.precision >= 0) refuse("an integer with a precision");
    if (base == 10 && spec.type != 0 && spec.type != 'd') refuse(std::string("an integer as '") + spec.type + "'");
    if (base != 10 && spec.grouping != 0) refuse("groups of other digits than decimal ones");
    const auto bits = static_cast<std::uint64_t>(value.integer());
    char text[72];
    const auto done = std::to_chars(text, text + sizeof text, negative ? 0 - bits : bits, base);
    body.assign(text, done.ptr);
    if (spec.type == 'X') body = upper(body);
  }
  if (spec.grouping != 0) body = with_groups(body, spec.grouping);
  if (spec.type == '%') body += '%';
  std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.alternate && !as_float && spec.type != 0 && spec.type != 'd') sign += std::string("0") + spec.type;
  if (spec.grouping != 0 && spec.align == '=') refuse("groups of digits after zeros");
  return pad(sign, body, spec, spec.align == 0 ? '>' : spec.align);
}

std::string format_text(std::string text, const Spec& spec, char align) {
  if (spec.precision >= 0) text = slice_text(text, Value(), std::int64_t{spec.precision}, Value());
  return pad("", text, spec, spec.align == 0 ? align : spec.align);
}

// Parses one conversion after the '%' at `at`, without the name in parentheses.
Spec read_percent(const std::string& text, std::size_t& at) {
  Spec spec;
  bool zeros = false, left = false;
  for (; at < text.size() && std::string_view("-+ #0").find(text[at]) != std::string_view::npos; ++at) {
    if (text[at] == '-') left = true;
    if (text[at] == '0') zeros = true;
    if (text[at] == '#') spec.alternate = true;
    if (text[at] == '+' || (text[at] == ' ' && spec.sign == '-')) spec.sign = text[at];
  }
  spec.width = read_number(text, at, kMostWidth);
  if (at < text.size() && text[at] == '.') spec.precision = static_cast<int>(read_number(text, ++at, kMostPrecision));
  spec.align = left ? '<' : zeros ? '=' : '>';
  if (zeros && !left) spec.fill = "0";
  spec.type = at < text.size() ? text[at++] : ' ';
  return spec;
}

std::string percent_value(const Value& value, Spec spec) {
  if (spec.type == 's' || spec.type == 'r') {
    if (spec.align == '=') spec.align = '>', spec.fill = " ";
    return format_text(spec.type == 's' ? value.text() : repr(value), spec, '>');
  }
  if (std::string_view("diuxXoeEfFgG").find(spec.type) == std::string_view::npos) {
    refuse(std::string("with '%") + spec.type + "'");
  }
  if (!value.is_number()) throw TemplateError("'%" + std::string(1, spec.type) + "' needs a number");
  if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
  if (spec.type == 'd' && value.is_float()) {
    if (!(std::abs(value.number()) < 9e15)) refuse("a large float as an integer");
    return format_number(static_cast<std::int64_t>(value.number()), spec);
  }
  if (value.is_float() && std::string_view("xXo").find(spec.type) != std::string_view::npos) {
    throw TemplateError("'%" + std::string(1, spec.type) + "' needs an integer");
  }
  return format_number(value, spec);
}

void append(std::string& out, const std::string& piece) {
  out += piece;
  Budget::spend(20 + piece.size() / 4);
  Budget::hold(piece.size());
  check_text_size(out.size());
}

Spec read_spec(const std::string& text) {
  Spec spec;
  std::size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  const std::size_t first = text.empty() ? 0 : decode_code_point(text, 0).bytes;
  if (first > 0 && first < text.size() && is_align(text[first])) {
    spec.fill = text.substr(0, first);
    spec.align = text[first];
    at = first + 1;
  } else if (first > 0 && is_align(text[0])) {
    spec.align = text[at++];
  }
  const auto next_is = [&](std::string_view set) { return at < text.size() && set.find(text[at]) != set.npos; };
  if (next_is("+- ")) spec.sign = text[at++];
  if (next_is("#")) spec.alternate = true, ++at;
  if (next_is("0")) {
    ++at;
    if (spec.align == 0) spec.align = '=', spec.fill = "0";
  }
  spec.width = read_number(text, at, kMostWidth);
  if (next_is(",_")) spec.grouping = text[at++];
  if (next_is(".")) {
    ++at;
    if (!next_is("0123456789")) throw TemplateError("a format has a '.' and no precision after it");
    spec.precision = static_cast<int>(read_number(text, at, kMostPrecision));
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) throw TemplateError("the format '" + text + "' is not valid");
  return spec;
}

std::string brace_value(const Value& value, const std::string& format) {
  if (format.empty()) return value.text();
  Spec spec = read_spec(format);
  if (value.is_number()) return format_number(value, spec);
  if (!value.is_string()) throw TemplateError("a format is given for " + value.type_name());
  if ((spec.type != 0 && spec.type != 's') || spec.sign != '-' || spec.alternate || spec.grouping != 0) {
    throw TemplateError("the format '" + format + "' is none for a text");
  }
  if (spec.align == '=') {
    if (spec.fill != "0" || format.find('=') != std::string::npos) refuse("a text with '='");
    spec.align = '<';
  }
  return format_text(value.string(), spec, '<');
}

// Looks up the value for "0.name[key]".
class Fields {
 public:
  Fields(List items, Dict named) : items_(std::move(items)), named_(std::move(named)) {}

  Value find(const std::string& name) {
    std::size_t at = std::min(name.find_first_of(".["), name.size());
    Value value = start(name.substr(0, at));
    while (at < name.size()) {
      const bool attribute = name[at] == '.';
      const std::size_t end = attribute ? std::min(name.find_first_of(".[", at + 1), name.size()) : name.find(']', at);
      if (end == std::string::npos || end == at + 1) throw TemplateError("the field '" + name + "' is not valid");
      const std::string key = name.substr(at + 1, end - at - 1);
      const bool number = std::all_of(key.begin(), key.end(), is_digit);
      if (attribute && key.starts_with("_")) refuse("members that begin with an underscore");
      std::size_t from = 0;
      value = attribute ? get_attribute(value, key)
              : number  ? get_item(value, read_number(key, from, 1000000))
                        : get_item(value, key);
      at = attribute ? end : end + 1;
      if (at < name.size() && name[at] != '.' && name[at] != '[') throw TemplateError("a field is not valid");
    }
    return value;
  }

 private:
  Value start(const std::string& name) {
    const bool number = !name.empty() && std::all_of(name.begin(), name.end(), is_digit);
    if (name.empty() || number) {
      if ((name.empty() && counted_) || (number && next_ > 0)) throw TemplateError("fields with and without numbers");
      counted_ = counted_ || number;
      std::size_t from = 0;
      const std::size_t at = number ? static_cast<std::size_t>(read_number(name, from, 1000000)) : next_++;
      if (at >= items_.size()) throw TemplateError("a format has more fields than values");
      return items_[at];
    }
    for (const auto& [key, value] : named_) {
      if (key == name) return value;
    }
    throw TemplateError("a format has the field '" + name + "', which is not passed");
  }

  List items_;
  Dict named_;
  std::size_t next_ = 0;
  bool counted_ = false;
};

}  // namespace

std::string percent_format(const std::string& text, const Value& values) {
  std::string out;
  std::size_t taken = 0;
  const std::size_t count = values.is_tuple() ? values.list().size() : 1;
  const auto next = [&]() -> Value {
    if (taken >= count) throw TemplateError("'%' has fewer values than the text takes");
    return values.is_tuple() ? values.list()[taken++] : (++taken, values);
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t percent = std::min(text.find('%', at), text.size());
    append(out, text.substr(at, percent - at));
    at = percent + 1;
    if (percent == text.size()) break;
    std::optional<Value> named;
    if (at < text.size() && text[at] == '(') {
      const std::size_t end = text.find(')', at);
      if (end == std::string::npos || !values.is_dict()) throw TemplateError("'%(name)' needs a dictionary");
      const Value* member = values.member(text.substr(at + 1, end - at - 1));
      if (member == nullptr) throw TemplateError("'%(name)' names what the dictionary lacks");
      named = *member;
      at = end + 1;
    }
    const std::size_t begin = at;
    const Spec spec = read_percent(text, at);
    if (spec.type == '%') {
      if (at != begin + 1) refuse("'%' with a width");
      append(out, "%");
    } else {
      append(out, percent_value(named ? *named : next(), spec));
    }
  }
  const bool mapping = values.is_dict() || (values.is_list() && !values.is_tuple());
  if (taken < count && !mapping) throw TemplateError("'%' has more values than the text takes");
  return out;
}

std::string brace_format(const std::string& text, Arguments& arguments) {
  Fields fields(arguments.take_rest().list(), std::exchange(arguments.named(), {}));
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t brace = std::min(text.find_first_of("{}", at), text.size());
    append(out, text.substr(at, brace - at));
    if (brace == text.size()) break;
    at = brace + 1;
    if (at < text.size() && text[at] == text[brace]) {
      out += text[at++];
      continue;
    }
    const std::size_t end = text.find_first_of("{}", at);
    if (text[brace] == '}' || end == std::string::npos) throw TemplateError("a format has a single brace");
    if (text[end] == '{') refuse("with a field inside a field");
    const std::string field = text.substr(at, end - at);
    const std::size_t colon = std::min(field.find(':'), field.size());
    const std::size_t mark = std::min(field.find('!'), colon);
    const std::string conversion = field.substr(mark, colon - mark);
    Value value = fields.find(field.substr(0, mark));
    if (conversion == "!r") {
      value = repr(value);
    } else if (conversion == "!s") {
      value = value.text();
    } else if (!conversion.empty()) {
      refuse("with the conversion '" + conversion + "'");
    }
    append(out, brace_value(value, colon == field.size() ? "" : field.substr(colon + 1)));
    at = end + 1;
  }
  return out;
}

}  // namespace oscar::jinja
