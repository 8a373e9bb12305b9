// Filters, tests and functions.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/budget.h"
#include "text/jinja/builtins.h"

namespace oscar::jinja {

Value Arguments::take(const char* name) {
  if (next_ < positional_.size()) return positional_[next_++];
  Budget::spend(3 * named_.size());
  for (std::size_t i = 0; i < named_.size(); ++i) {
    if (named_[i].first != name) continue;
    Value value = std::move(named_[i].second);
    named_.erase(named_.begin() + static_cast<std::ptrdiff_t>(i));
    return value;
  }
  return Undefined{name};
}

Value Arguments::take(const char* name, Value fallback) {
  Value value = take(name);
  return value.is_undefined() ? std::move(fallback) : std::move(value);
}

std::optional<Value> Arguments::take_given(const char* name) {
  const bool given = next_ < positional_.size() ||
                     std::any_of(named_.begin(), named_.end(), [&](const auto& one) { return one.first == name; });
  return given ? std::optional(take(name)) : std::nullopt;
}

Value Arguments::take_rest() {
  List rest(positional_.begin() + static_cast<std::ptrdiff_t>(next_), positional_.end());
  next_ = positional_.size();
  return rest;
}

void Arguments::finish() const {
  if (next_ < positional_.size() || !named_.empty()) {
    throw TemplateError(where_ + " has arguments that are not supported");
  }
}

namespace {

// In Python's order of arguments: (ensure_ascii, indent, separators, sort_keys).
JsonStyle json_style(Arguments& arguments) {
  JsonStyle style;
  style.ascii_only = arguments.take("ensure_ascii", false).truth();
  const Value indent = arguments.take("indent", None{}), separators = arguments.take("separators", None{});
  style.sort_keys = arguments.take("sort_keys", false).truth();
  if (indent.is_string()) {
    style.indent = indent.string();
  } else if (indent.is_integral()) {
    constexpr std::int64_t kMost = 1000;
    if (indent.integer() > kMost) throw TemplateError("tojson with an indent above 1000 is not supported");
    style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(indent.integer(), 0)), ' ');
  } else if (!indent.is_none()) {
    throw TemplateError("tojson needs an integer or a string as 'indent'");
  }
  if (style.indent) style.comma = ",";
  if (!separators.is_none()) {
    const bool pair = separators.is_list() && separators.list().size() == 2 && separators.list()[0].is_string() &&
                      separators.list()[1].is_string();
    if (!pair) throw TemplateError("tojson needs two strings as 'separators'");
    style.comma = separators.list()[0].string();
    style.colon = separators.list()[1].string();
  }
  return style;
}

// The filter indent: indents every line except the first; lines without text only with `blank`.
std::string indented(const std::string& text, Arguments& arguments) {
  const Value width = arguments.take("width", std::int64_t{4});
  const bool first = arguments.take("first", false).truth(), blank = arguments.take("blank", false).truth();
  if (!width.is_string() && !width.is_integral()) throw TemplateError("indent needs an integer or a string");
  if (width.is_integral() && width.integer() > 1000) throw TemplateError("indent above 1000 is not supported");
  const std::string by = width.is_string()
                             ? width.string()
                             : std::string(static_cast<std::size_t>(std::max<std::int64_t>(width.integer(), 0)), ' ');
  if (text.find('\r') != std::string::npos)
    throw TemplateError("indent of a text with carriage returns is not supported");
  std::string out;
  for (std::size_t at = 0, line = 0; at <= text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (line > 0) out += '\n';
    if (line == 0 ? first : (blank || end > at)) out += by;
    out.append(text, at, end - at);
    Budget::spend(20 + by.size() / 4);
    check_text_size(out.size());
    at = end + 1;
  }
  return out;
}

// round(number, precision, method): a float; "common" rounds halves to even, as Python does.
Value rounded(const Value& subject, Arguments& arguments) {
  const Value precision = arguments.take("precision", std::int64_t{0});
  const std::string method = arguments.take("method", "common").text();
  if (!subject.is_number()) throw TemplateError("round needs a number, found " + subject.type_name());
  if (!precision.is_int() || precision.integer() < 0 || precision.integer() > 15) {
    throw TemplateError("round needs a precision of 0 to 15, others are not supported");
  }
  if (subject.is_integral() && method == "common") return subject.integer();
  const int digits = static_cast<int>(precision.integer());
  if (method == "common") {
    if (digits == 0) return std::nearbyint(subject.number());
    char text[400];  // like Python, the C library rounds the exact value, halves to even
    std::snprintf(text, sizeof text, "%.*f", digits, subject.number());
    return std::strtod(text, nullptr);
  }
  double scale = 1.0;
  for (int i = 0; i < digits; ++i) scale *= 10.0;
  if (method == "ceil") return std::ceil(subject.number() * scale) / scale;
  if (method == "floor") return std::floor(subject.number() * scale) / scale;
  throw TemplateError("round needs 'common', 'ceil' or 'floor' as 'method'");
}

Value to_float(const Value& subject, const Value& fallback) {
  if (subject.is_number()) return subject.number();
  if (subject.is_undefined()) throw TemplateError("something undefined has no value as a number");
  if (!subject.is_string()) return fallback;
  const auto number = parse_float(subject.string());
  return number ? Value(*number) : fallback;
}

}  // namespace

// A member by a path such as "function.name".
Value get_path(const Value& object, const Value& path) {
  if (!path.is_string()) return get_item(object, path);
  Value value = object;
  std::size_t at = 0;
  while (at <= path.string().size()) {
    const std::size_t dot = std::min(path.string().find('.', at), path.string().size());
    value = get_item(value, path.string().substr(at, dot - at));
    at = dot + 1;
  }
  return value;
}

namespace {

Value length_of(const Value& subject) {
  if (subject.is_string()) return text_length(subject.string());
  if (subject.is_undefined()) return std::int64_t{0};
  if (!subject.is_generator() && (subject.is_list() || subject.is_dict())) {
    return static_cast<std::int64_t>(subject.weight());
  }
  throw TemplateError("'" + subject.type_name() + "' has no length");
}

// The items for select and map. These filters do not look into false values, so false and 0 count as an empty list.
List iterate_if_true(const Value& subject) {
  return subject.is_generator() || subject.truth() ? iterate(subject) : List{};
}

// select, reject, selectattr, rejectattr.
Value choose(const std::string& name, const Value& subject, Arguments& arguments) {
  const bool by_attribute = name.ends_with("attr"), keep = name.starts_with("select");
  const Value path = by_attribute ? arguments.take("attribute") : Value();
  const bool has_test = arguments.left() > 0;
  const std::string test = has_test ? arguments.take("test").text() : "";
  const List rest = arguments.take_rest().list();
  const Dict named = std::exchange(arguments.named(), {});
  List chosen;
  for (const Value& item : iterate_if_true(subject)) {
    const Value value = by_attribute ? get_path(item, path) : item;
    const bool passed =
        has_test ? call_test(test, value, Arguments("the test '" + test + "'", rest, named)) : value.truth();
    if (passed == keep) chosen.push_back(item);
  }
  return Value(std::move(chosen), Sequence::kGenerator);
}

Value map(const Value& subject, Arguments& arguments) {
  List mapped;
  if (arguments.left() == 0) {
    const Value path = arguments.take("attribute"), fallback = arguments.take("default");
    if (path.is_undefined()) throw TemplateError("map needs an attribute or the name of a filter");
    for (const Value& item : iterate_if_true(subject)) {
      const Value value = get_path(item, path);
      mapped.push_back(value.is_undefined() ? fallback : value);
    }
    return Value(std::move(mapped), Sequence::kGenerator);
  }
  const std::string filter = arguments.take("filter").text();
  const List rest = arguments.take_rest().list();
  const Dict named = std::exchange(arguments.named(), {});
  for (const Value& item : iterate_if_true(subject)) {
    mapped.push_back(call_filter(filter, item, Arguments("the filter '" + filter + "'", rest, named)));
  }
  return Value(std::move(mapped), Sequence::kGenerator);
}

Value to_integer(const Value& subject, const Value& fallback) {
  if (subject.is_integral()) return subject.integer();
  if (subject.is_float() && subject.number() > -9e15 && subject.number() < 9e15) {
    return static_cast<std::int64_t>(subject.number());
  }
  if (subject.is_undefined()) throw TemplateError("something undefined has no integer value");
  if (subject.is_string()) {
    if (const auto number = parse_integer(subject.string())) return *number;
    const auto number = parse_float(subject.string());  // "1.5" becomes 1, like int(float(text))
    if (number && std::abs(*number) < 9e15) return static_cast<std::int64_t>(*number);
    if (number && std::isfinite(*number)) throw TemplateError("an integer beyond 2^53 in a text is not supported");
  }
  return fallback;
}

// Text after the filter `safe` is written as it is. Jinja's other operations on it escape what it meets: refused.
void check_safe_filter(const std::string& name) {
  for (const char* plain : {"safe", "string", "length", "count", "tojson", "default", "d", "int", "float", "list"}) {
    if (name == plain) return;
  }
  throw TemplateError("the filter '" + name + "' after safe is not supported");
}

Value filter(const std::string& name, const Value& subject, Arguments& arguments) {
  if (subject.is_markup()) check_safe_filter(name);
  if (name == "trim") return strip(subject.text(), arguments.take("chars"), true, true);
  if (name == "length" || name == "count") return length_of(subject);
  if (name == "tojson") return to_json(subject, json_style(arguments));
  if (name == "default" || name == "d") {
    const Value fallback = arguments.take("default_value", "");
    const bool also_false = arguments.take("boolean", false).truth();
    return subject.is_undefined() || (also_false && !subject.truth()) ? fallback : subject;
  }
  if (name == "replace") {
    const Value from = arguments.take("old"), to = arguments.take("new");
    const Value count = arguments.take("count", std::int64_t{-1});
    if (!count.is_int()) throw TemplateError("replace needs an integer as 'count'");
    return replace_all(subject.text(), from, to, count.integer());
  }
  if (name == "join") {
    const Value separator = arguments.take("d", "");
    const Value path = arguments.take("attribute");
    List items = iterate(subject);
    for (Value& item : items) item = path.is_undefined() ? item : get_path(item, path);
    return join(items, separator.text());
  }
  if (name == "first" && subject.is_generator()) return subject.take_first().value_or(Undefined{name});
  if (name == "first" || name == "last") {
    const List items = iterate(subject);
    if (items.empty()) return Undefined{name};
    return name == "first" ? items.front() : items.back();
  }
  if (name == "lower") return lower(subject.text());
  if (name == "upper") return upper(subject.text());
  if (name == "capitalize") return capitalize(subject.text());
  if (name == "title") return title_of_words(subject.text());
  if (name == "indent") {
    if (!subject.is_string()) throw TemplateError("indent needs a text, found " + subject.type_name());
    return indented(subject.string(), arguments);
  }
  if (name == "abs" && subject.is_bool()) return subject.integer();
  if (name == "abs" && subject.is_number()) {
    return subject.is_float() || subject.integer() < 0
               ? binary(subject.number() < 0 ? "-" : "+", std::int64_t{0}, subject)
               : subject;
  }
  if (name == "round") return rounded(subject, arguments);
  if (name == "float") return to_float(subject, arguments.take("default", 0.0));
  if (name == "string") return subject.is_markup() ? subject : subject.text();
  if (name == "safe") return Value::markup(subject.text());
  if (name == "list") return iterate(subject);
  if (name == "int") return to_integer(subject, arguments.take("default", std::int64_t{0}));
  if (name == "items") {
    const Value items = subject.is_undefined() ? Value(List{}) : call_method(subject, "items", Arguments(name, {}));
    return Value(items.list(), Sequence::kGenerator);
  }
  if (name == "reverse") {
    if (subject.is_string()) return slice_text(subject.string(), {}, {}, std::int64_t{-1});
    List items = iterate(subject);
    std::reverse(items.begin(), items.end());
    return Value(std::move(items), Sequence::kGenerator);
  }
  if (name == "map") return map(subject, arguments);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return choose(name, subject, arguments);
  }
  if (auto made = list_filter(name, subject, arguments)) return std::move(*made);
  throw TemplateError("the filter '" + name + "' is not supported");
}

bool test(const std::string& name, const Value& subject, Arguments& arguments) {
  if (name == "defined") return !subject.is_undefined();
  if (name == "undefined") return subject.is_undefined();
  if (name == "none") return subject.is_none();
  if (name == "string") return subject.is_string();
  if (name == "mapping") return subject.is_dict();
  if (name == "sequence") return subject.can_index() || subject.is_dict() || subject.is_undefined();
  if (name == "iterable")
    return subject.is_string() || subject.is_list() || subject.is_dict() || subject.is_undefined();
  if (name == "number") return subject.is_number();
  if (name == "integer") return subject.is_int();
  if (name == "float") return subject.is_float();
  if (name == "boolean") return subject.is_bool();
  if (name == "true") return subject.is_bool() && subject.truth();
  if (name == "false") return subject.is_bool() && !subject.truth();
  if (name == "callable")
    return subject.as_macro() != nullptr || subject.as_function() != nullptr || subject.is_undefined();
  if (name == "odd" || name == "even") {
    if (!subject.is_integral())
      throw TemplateError("the test '" + name + "' of a " + subject.type_name() + " is not supported");
    return (subject.integer() % 2 != 0) == (name == "odd");
  }
  if (name == "divisibleby") {
    const Value by = arguments.take("num");
    if (!subject.is_integral() || !by.is_integral() || by.integer() == 0) {
      throw TemplateError("the test 'divisibleby' of a " + subject.type_name() + " is not supported");
    }
    return by.integer() == -1 || subject.integer() % by.integer() == 0;
  }
  if (name == "lower" || name == "upper") {
    const std::string text = subject.text();
    return text != (name == "lower" ? upper(text) : lower(text)) &&
           text == (name == "lower" ? lower(text) : upper(text));
  }
  if (name == "sameas") {
    const Value other = arguments.take("other");
    if (other.is_none()) return subject.is_none();
    if (other.is_bool()) return subject.is_bool() && subject.truth() == other.truth();
    if (other.is_undefined() || subject.is_bool() || subject.is_none()) return false;
    throw TemplateError("the test 'sameas' of a " + other.type_name() + " is not supported");
  }
  if (name == "in") return contains(arguments.take("seq"), subject);
  if (name == "eq" || name == "equalto") return equal(subject, arguments.take("other"));
  if (name == "ne") return !equal(subject, arguments.take("other"));
  if (name == "lt" || name == "lessthan") return compare(subject, arguments.take("other")) < 0;
  if (name == "le") return compare(subject, arguments.take("other")) <= 0;
  if (name == "gt" || name == "greaterthan") return compare(subject, arguments.take("other")) > 0;
  if (name == "ge") return compare(subject, arguments.take("other")) >= 0;
  throw TemplateError("the test '" + name + "' is not supported");
}

// The C library's strftime in its C locale, equal to Python's.
Value format_time(const Value& format, const std::tm& now) {
  constexpr std::size_t kMost = 1000;
  if (!format.is_string() || format.string().size() > kMost) {
    throw TemplateError("strftime_now needs a format of at most 1000 bytes");
  }
  if (format.string().empty()) return "";
  for (std::size_t at = 0; (at = format.string().find('%', at)) != std::string::npos; at += 2) {
    // A field width could be arbitrarily large, and Python's %f does not exist in the C library.
    std::size_t field = at + 1;
    if (field < format.string().size() && (format.string()[field] == '-' || format.string()[field] == '_')) ++field;
    const char c = field < format.string().size() ? format.string()[field] : ' ';
    if (std::string_view("aAbBcdeFHIjmMpSTuUwWxXyYzZ%DRhnt").find(c) == std::string_view::npos) {
      throw TemplateError("strftime_now with the field '%" + std::string(1, c) + "' is not supported");
    }
    if (c == '%' && field == at + 1) at = field - 1;
  }
  std::string text(64 * kMost, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.string().c_str(), &now));
  return text;
}

Value range(Arguments& arguments) {
  const List bounds = arguments.take_rest().list();
  if (bounds.empty() || bounds.size() > 3) throw TemplateError("range needs one to three integers");
  for (const Value& bound : bounds) {
    if (!bound.is_integral()) throw TemplateError("range needs integers, found " + bound.type_name());
  }
  const std::int64_t first = bounds.size() > 1 ? bounds[0].integer() : 0;
  const std::int64_t last = bounds[bounds.size() > 1 ? 1 : 0].integer();
  const std::int64_t step = bounds.size() > 2 ? bounds[2].integer() : 1;
  if (step == 0) throw TemplateError("range has the step 0");
  List items;
  for (std::int64_t i = first; step > 0 ? i < last : i > last;) {
    if (items.size() >= 100000) throw TemplateError("range has more than 100000 items");
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value(std::move(items), Sequence::kRange);
}

}  // namespace

Value call_filter(const std::string& name, const Value& subject, Arguments arguments) {
  Value result = filter(name, subject, arguments);
  arguments.finish();
  return result;
}

bool call_test(const std::string& name, const Value& subject, Arguments arguments) {
  const bool result = test(name, subject, arguments);
  arguments.finish();
  return result;
}

bool is_function(const std::string& name) {
  return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception" ||
         name == "strftime_now";
}

Value call_function(const std::string& name, Arguments arguments, const std::tm& now) {
  if (!is_function(name)) throw TemplateError("calling '" + name + "' from a variable is not supported");
  if (name == "strftime_now") {
    const Value format = arguments.take("format");
    arguments.finish();
    return format_time(format, now);
  }
  if (name == "raise_exception") throw TemplateError("it says: " + arguments.take("message").text());
  if (name == "range") {
    Value items = range(arguments);
    arguments.finish();
    return items;
  }
  Dict members;  // namespace and dict
  const auto set_member = [&members](const Key& key, const Value& value) {
    Budget::spend(3 * members.size());
    const auto at = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.first == key; });
    if (at != members.end()) {
      at->second = value;
    } else {
      members.emplace_back(key, value);
    }
  };
  if (arguments.left() > 0) {
    const Value from = arguments.take("mapping");
    if (from.is_dict()) {
      members = from.dict();
    } else {
      for (const Value& pair : iterate(from)) {  // keys and values
        const List both = iterate(pair);
        if (both.size() != 2 || !both[0].is_string()) {
          throw TemplateError(name + " needs a dictionary or pairs of a str and a value");
        }
        set_member(both[0].string(), both[1]);
      }
    }
  }
  for (const auto& [key, value] : arguments.named()) set_member(key, value);
  arguments.named().clear();
  arguments.finish();
  for (const auto& [key, value] : members) {
    if (name == "namespace" && (key.number() || key.text().starts_with("_"))) {
      throw TemplateError("a namespace cannot have the member '" + key.text() +
                          "', which is a number or begins with an underscore");
    }
  }
  if (name == "dict") return members;
  return Namespaces::make(std::move(members));
}

}  // namespace oscar::jinja
