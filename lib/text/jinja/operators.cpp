// Attribute and item access, and Python's arithmetic.
#include <algorithm>
#include <cmath>

#include "base/budget.h"
#include "text/jinja/builtins.h"

namespace oscar::jinja {
namespace {

[[noreturn]] void refuse(const std::string& op, const Value& left, const Value& right) {
  throw TemplateError("'" + op + "' between " + left.type_name() + " and " + right.type_name() + " is not supported");
}

Value integer_arithmetic(const std::string& op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    if (b < 0) throw TemplateError("a negative power is not supported");
    result = 1;
    for (std::int64_t i = 0; i < b && !overflow && (i < 64 || (a != 0 && a != 1 && a != -1)); ++i) {
      overflow = __builtin_mul_overflow(result, a, &result);
    }
    if (a == -1) result = b % 2 == 0 ? 1 : -1;
  } else {  // / // %
    if (b == 0) throw TemplateError("division by zero");
    if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
    if (b == -1) {
      overflow = op == "//" && __builtin_sub_overflow(std::int64_t{0}, a, &result);
    } else {  // Python rounds toward minus infinity
      const std::int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
      result = op == "//" ? quotient : a - quotient * b;
    }
  }
  if (overflow) throw TemplateError("a number does not fit 64 bits");
  return result;
}

Value float_arithmetic(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  if (b == 0.0) throw TemplateError("division by zero");
  if (op == "/") return a / b;
  const double floor = std::floor(a / b);
  return op == "//" ? floor : a - floor * b;
}

}  // namespace

Value get_attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) throw TemplateError("'" + name + "' is read from something undefined");
  if (object.is_dict()) {
    for (const char* method : {"items", "keys", "values", "get", "copy", "fromkeys"}) {
      if (name == method) return Function{"dict." + name};
    }
    for (const char* changing : {"clear", "pop", "popitem", "setdefault", "update"}) {
      if (name == changing) return Undefined{name};
    }
  }
  const Value* member = object.member(name);
  return member != nullptr ? *member : Value(Undefined{name});
}

Value get_item(const Value& object, const Value& key) {
  if (object.is_undefined()) throw TemplateError("an item is read from something undefined");
  if (key.is_string()) {
    const Value* member = object.member(key.string());
    return member != nullptr ? *member : get_attribute(object, key.string());
  }
  if (object.is_dict()) {
    const Value* member = object.member_of(key);
    return member != nullptr ? *member : Value(Undefined{"item"});
  }
  if (object.is_list() && !object.can_index())
    throw TemplateError("an item of a " + object.type_name() + " is not supported");
  if (!key.is_integral() || !object.can_index()) return Undefined{"item"};
  const std::int64_t size =
      object.is_list() ? static_cast<std::int64_t>(object.list().size()) : text_length(object.string());
  const std::int64_t at = key.integer() < 0 ? key.integer() + size : key.integer();
  if (at < 0 || at >= size) return Undefined{"item"};
  if (object.is_list()) return object.list()[static_cast<std::size_t>(at)];
  return slice_text(object.string(), at, at + 1, Value());
}

Value binary(const std::string& op, const Value& left, const Value& right) {
  if (op == "~") {
    std::string joined = left.text() + right.text();
    check_text_size(joined.size());
    return joined;
  }
  if (left.is_integral() && right.is_integral()) return integer_arithmetic(op, left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return float_arithmetic(op, left.number(), right.number());
  if (left.is_markup() || right.is_markup()) {
    throw TemplateError("'" + op + "' with a text after safe is not supported");
  }
  if (op == "+" && left.is_string() && right.is_string()) {
    check_text_size(left.string().size() + right.string().size());
    return left.string() + right.string();
  }
  if (op == "+" && left.is_list() && right.is_list() && left.sequence() == right.sequence() &&
      (left.is_tuple() || left.is_sequence(Sequence::kList))) {
    List items = left.list();
    items.insert(items.end(), right.list().begin(), right.list().end());
    return Value(std::move(items), left.sequence());
  }
  if (op == "*" && (left.is_string() || right.is_string()) && (left.is_integral() || right.is_integral())) {
    const std::string& unit = left.is_string() ? left.string() : right.string();
    const std::int64_t count = left.is_string() ? right.integer() : left.integer();
    std::string out;
    if (count > 0 && !unit.empty() && static_cast<std::uint64_t>(count) > kMaxText / unit.size())
      check_text_size(kMaxText + 1);
    for (std::int64_t i = 0; i < count && !unit.empty(); ++i) out += unit;
    Budget::spend(count > 0 && !unit.empty() ? 4 * static_cast<std::uint64_t>(count) : 0);
    return out;
  }
  refuse(op, left, right);
}

}  // namespace oscar::jinja
