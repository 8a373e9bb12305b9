// Filters, tests and functions.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/unicode.h"

namespace oscar::jinja {

Value Arguments::take(const char* name) {
  if (next_ < positional_.size()) return positional_[next_++];
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

Value length_of(const Value& subject) {
  if (subject.is_string()) return text_length(subject.string());
  if (subject.is_undefined()) return std::int64_t{0};
  if (!subject.is_generator() && (subject.is_list() || subject.is_dict())) {
    return static_cast<std::int64_t>(subject.weight());
  }
  throw TemplateError("'" + subject.type_name() + "' has no length");
}

// A member by a path such as "function.name".
Value by_path(const Value& object, const Value& path) {
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

// What select and map go through. They do not look into what is false, so false and 0 pass for an empty list.
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
  List chosen;
  for (const Value& item : iterate_if_true(subject)) {
    const Value value = by_attribute ? by_path(item, path) : item;
    const bool passed = has_test ? call_test(test, value, Arguments("the test '" + test + "'", rest)) : value.truth();
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
      const Value value = by_path(item, path);
      mapped.push_back(value.is_undefined() ? fallback : value);
    }
    return Value(std::move(mapped), Sequence::kGenerator);
  }
  const std::string filter = arguments.take("filter").text();
  const List rest = arguments.take_rest().list();
  for (const Value& item : iterate_if_true(subject)) {
    mapped.push_back(call_filter(filter, item, Arguments("the filter '" + filter + "'", rest)));
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
    const std::string digits = strip(subject.string(), Value(), true, true);
    const std::size_t sign = !digits.empty() && (digits[0] == '-' || digits[0] == '+') ? 1 : 0;
    if (digits.size() > sign && digits.size() - sign < 18 &&
        digits.find_first_not_of("0123456789", sign) == std::string::npos) {
      return static_cast<std::int64_t>(std::stoll(digits));
    }
    // Python also reads 1.5, 1e3, 1_000, inf and the digits of other scripts; plain words have no value.
    const bool word = is_ascii(digits) && digits.find_first_of("0123456789") == std::string::npos;
    const std::string name = word ? lower(digits.substr(sign)) : "nan";
    if (name == "nan" || name.starts_with("inf")) {
      throw TemplateError("the integer value of '" + digits.substr(0, 40) + "' is not supported");
    }
  }
  return fallback;
}

Value filter(const std::string& name, const Value& subject, Arguments& arguments) {
  if (name == "trim") return strip(subject.text(), arguments.take("chars"), true, true);
  if (name == "length" || name == "count") return length_of(subject);
  if (name == "tojson") {
    const Value indent = arguments.take("indent", None{});
    if (!indent.is_none() && !indent.is_int()) throw TemplateError("tojson needs an integer as 'indent'");
    return to_json(subject, indent.is_none() ? -1 : std::max<std::int64_t>(indent.integer(), 0));
  }
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
    for (Value& item : items) item = path.is_undefined() ? item : by_path(item, path);
    return join(items, separator.text());
  }
  if (name == "first" || name == "last") {
    const List items = iterate(subject);
    if (items.empty()) return Undefined{name};
    return name == "first" ? items.front() : items.back();
  }
  if (name == "lower") return lower(subject.text());
  if (name == "upper") return upper(subject.text());
  if (name == "capitalize") return capitalize(subject.text());
  if (name == "string") return subject.text();
  if (name == "safe") return subject;
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
  if (name == "in") return contains(arguments.take("seq"), subject);
  if (name == "eq" || name == "equalto") return equal(subject, arguments.take("other"));
  if (name == "ne") return !equal(subject, arguments.take("other"));
  if (name == "lt" || name == "lessthan") return compare(subject, arguments.take("other")) < 0;
  if (name == "le") return compare(subject, arguments.take("other")) <= 0;
  if (name == "gt" || name == "greaterthan") return compare(subject, arguments.take("other")) > 0;
  if (name == "ge") return compare(subject, arguments.take("other")) >= 0;
  throw TemplateError("the test '" + name + "' is not supported");
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
  return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception";
}

Value call_function(const std::string& name, Arguments arguments) {
  if (name == "raise_exception") throw TemplateError("it says: " + arguments.take("message").text());
  if (name == "range") {
    Value items = range(arguments);
    arguments.finish();
    return items;
  }
  Dict members;  // namespace and dict
  if (arguments.left() > 0) {
    const Value from = arguments.take("mapping");
    if (!from.is_dict()) throw TemplateError(name + " needs a dictionary, found " + from.type_name());
    members = from.dict();
  }
  for (const auto& named : arguments.named()) {  // Clang 14 captures no structured bindings
    const auto at = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.first == named.first; });
    if (at != members.end()) {
      at->second = named.second;
    } else {
      members.emplace_back(named.first, named.second);
    }
  }
  arguments.named().clear();
  arguments.finish();
  if (name == "dict") return members;
  return Namespace{std::make_shared<Dict>(std::move(members))};
}

}  // namespace oscar::jinja
