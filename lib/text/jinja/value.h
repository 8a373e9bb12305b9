// Values during the rendering of a chat template: the part of Python's data model that templates use. Copies of a value
// share its text and members. Constructing one charges its size to the rendering's budget (base/budget.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/errors.h"
#include "base/json.h"
#include "text/unicode/unicode.h"

namespace oscar::jinja {

// An invalid or unsupported operation of a template. Becomes an InputError with the template's name.
struct TemplateError : InputError {
  explicit TemplateError(const std::string& m) : InputError(printable(m, 500)) {}
};

class Value;
struct Statement;

// A dictionary key: text or an integer.
class Key {
 public:
  Key(std::string text) : text_(std::move(text)) {}
  Key(const char* text) : text_(text) {}
  Key(std::int64_t number) : text_(std::to_string(number)), number_(number) {}
  const std::string& text() const { return text_; }  // for a number, also its JSON text
  const std::optional<std::int64_t>& number() const { return number_; }
  Value value() const;
  bool operator==(const Key& other) const { return number_ == other.number_ && text_ == other.text_; }
  bool operator==(const std::string& text) const { return !number_ && text_ == text; }
  bool operator==(const char* text) const { return !number_ && text_ == text; }

 private:
  std::string text_;
  std::optional<std::int64_t> number_;
};

struct Undefined {
  std::string name;  // the name that was looked up
};
struct None {};
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Key, Value>>;  // in insertion order; few members
struct Scope;
// A macro, or the `caller` that a call block passes. It uses the variables of its defining scope, so it may be called
// only while that scope is alive; scope_id identifies the scope.
struct Macro {
  const Statement* definition;
  Scope* scope;
  std::uint64_t scope_id;
};
// The variable `loop`.
struct Loop {
  std::shared_ptr<const Dict> members;  // index, first, ...
};
struct Function {
  std::string name;  // range, namespace, raise_exception; "dict.get" for a method that is read but not called
};
// The only object that {% set a.b = c %} can change. It may hold itself, so its members live until the rendering ends.
struct Namespace {
  std::shared_ptr<Dict> members;
};
// The namespaces of one rendering on this thread.
class Namespaces {
 public:
  Namespaces();
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;
  static Namespace make(Dict members);

 private:
  static inline thread_local Namespaces* current_ = nullptr;
  Namespaces* const outer_;
  std::vector<std::shared_ptr<Dict>> all_;
};

// Kinds of list. A generator (the result of map and select) can be iterated once and is then empty.
enum class Sequence { kList, kTuple, kRange, kView, kGenerator };

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(Undefined u) : data_(std::move(u)) {}
  Value(None n) : data_(n) {}
  Value(bool b) : data_(b) {}
  Value(std::int64_t i) : data_(i) {}
  Value(double d) : data_(d) {}
  Value(std::string s);
  Value(const char* s) : Value(std::string(s)) {}
  // TemplateError for containers nested more than 100 levels deep, not counting beyond a namespace.
  Value(List items, Sequence sequence = Sequence::kList);
  Value(Dict members);
  Value(Namespace n) : data_(std::move(n)) {}
  Value(Macro m) : data_(m) {}
  Value(Loop l) : data_(std::move(l)) {}
  // Text after the filter `safe`, with which `+` would escape the other operand: refused.
  static Value markup(std::string s);
  Value(Function f) : data_(std::move(f)) {}

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_string() const { return std::holds_alternative<Text>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }
  bool is_sequence(Sequence kind) const { return is_list() && sequence_ == kind; }
  bool is_markup() const { return is_string() && markup_; }
  bool is_tuple() const { return is_sequence(Sequence::kTuple); }
  bool is_generator() const { return is_sequence(Sequence::kGenerator); }
  bool can_index() const {
    return is_string() || is_sequence(Sequence::kList) || is_tuple() || is_sequence(Sequence::kRange);
  }
  Sequence sequence() const { return sequence_; }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(data_); }  // false for booleans
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }
  const Namespace* as_namespace() const { return std::get_if<Namespace>(&data_); }
  const Macro* as_macro() const { return std::get_if<Macro>(&data_); }
  const Loop* as_loop() const { return std::get_if<Loop>(&data_); }
  const Function* as_function() const { return std::get_if<Function>(&data_); }

  const std::string& string() const { return *std::get<Text>(data_); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  std::int64_t integer() const { return is_bool() ? std::get<bool>(data_) : std::get<std::int64_t>(data_); }
  double number() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integer()); }

  // For a generator: removes and returns the remaining items, all of them or the first.
  List take_items() const;
  std::optional<Value> take_first() const;

  std::size_t weight() const;                 // cost of a traversal: bytes of a string, members of a container
  std::string type_name() const;              // Python's name, for messages
  bool truth() const;                         // bool(x)
  std::string text() const;                   // str(x)
  const Value* member(const Key& key) const;  // of a dictionary, namespace or loop; null if absent
  // The same for a key of any type; null unless it is text or an integer.
  const Value* member_of(const Value& key) const;

 private:
  using Text = std::shared_ptr<const std::string>;
  std::variant<Undefined, None, bool, std::int64_t, double, Text, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, Namespace, Macro, Loop, Function>
      data_;
  void nest(const Value& member);

  std::shared_ptr<std::size_t> taken_;  // number of consumed items of a generator, shared by its copies
  bool markup_ = false;

  Sequence sequence_ = Sequence::kList;
  int depth_ = 0;  // nesting depth of containers
};

bool equal(const Value& a, const Value& b);
int compare(const Value& a, const Value& b);  // negative, 0, positive; TemplateError for types without an order
// "needle in container".
bool contains(const Value& container, const Value& needle);
// The items that a for loop visits: list items, characters of a string, or keys of a dictionary.
List iterate(const Value& value);
// Python's repr(x).
std::string repr(const Value& value);

// The options of json.dumps.
struct JsonStyle {
  std::optional<std::string> indent;  // per level; without it, everything is on one line
  std::string comma = ", ", colon = ": ";
  bool ascii_only = false, sort_keys = false;
};
std::string to_json(const Value& value, const JsonStyle& style);

// Converts JSON to template values.

// TemplateError for an integer of 2^63 or more. Json already stores larger integers, which Python would keep exactly,
// as floats: see has_huge_integer.
Value from_json(const Json& json);

// Whether JSON text contains an integer of more than 64 bits.
bool has_huge_integer(std::string_view text);

}  // namespace oscar::jinja
