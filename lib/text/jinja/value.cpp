#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "base/budget.h"
#include "text/jinja/builtins.h"

namespace oscar::jinja {

Value::Value(std::string s) {
  Budget::spend(120 + s.size() / 4);  // mostly the first touch of its memory
  Budget::hold(s.size() + 64);
  data_ = std::make_shared<const std::string>(std::move(s));
}

Value Value::markup(std::string s) {
  Value value(std::move(s));
  value.markup_ = true;
  return value;
}

Value::Value(List items, Sequence sequence) : sequence_(sequence) {
  Budget::spend(40 + 20 * items.size());
  Budget::hold(64 + sizeof(Value) * items.size());
  for (const Value& item : items) nest(item);
  data_ = std::make_shared<const List>(std::move(items));
  if (sequence == Sequence::kGenerator) taken_ = std::make_shared<std::size_t>(0);
}

Value::Value(Dict members) {
  Budget::spend(40 + 40 * members.size());
  Budget::hold(64 + sizeof(Dict::value_type) * members.size());
  for (const auto& member : members) nest(member.second);
  data_ = std::make_shared<const Dict>(std::move(members));
}

void Value::nest(const Value& member) {
  if (member.is_generator() || member.as_loop() != nullptr) {
    throw TemplateError("a " + member.type_name() + " inside a container is not supported");
  }
  depth_ = std::max(depth_, member.depth_ + 1);
  if (depth_ > 100) throw TemplateError("containers are nested deeper than 100 levels");
}

Namespaces::Namespaces() : outer_(current_) { current_ = this; }

Namespaces::~Namespaces() {
  for (const auto& members : all_) members->clear();  // ends circles
  current_ = outer_;
}

Namespace Namespaces::make(Dict members) {
  Budget::hold(64 + sizeof(Dict::value_type) * members.size());
  const auto made = std::make_shared<Dict>(std::move(members));
  if (current_ != nullptr) current_->all_.push_back(made);
  return {made};
}

List Value::take_items() const {
  const auto first = list().begin() + static_cast<std::ptrdiff_t>(*taken_);
  *taken_ = list().size();
  return List(first, list().end());
}

std::optional<Value> Value::take_first() const {
  return *taken_ < list().size() ? std::optional(list()[(*taken_)++]) : std::nullopt;
}

std::size_t Value::weight() const {
  return is_string() ? string().size() : is_list() ? list().size() : is_dict() ? dict().size() : 0;
}

std::string Value::type_name() const {
  static const char* const kSequences[] = {"list", "tuple", "range", "view", "generator"};
  if (is_list()) return kSequences[static_cast<int>(sequence_)];
  static const char* const kNames[] = {"undefined", "None", "bool",      "int",   "float", "str",
                                       "list",      "dict", "namespace", "macro", "loop",  "function"};
  return kNames[data_.index()];
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0.0;
  if (is_string()) return !string().empty();
  if (is_generator()) return true;  // like every Python object without a length
  if (is_list()) return !list().empty();
  if (is_dict()) return !dict().empty();
  return true;
}

Value Key::value() const { return number_ ? Value(*number_) : Value(text_); }

const Value* Value::member_of(const Value& key) const {
  if (key.is_string()) return member(key.string());
  if (key.is_integral()) return member(key.integer());
  const bool whole = key.is_float() && std::abs(key.number()) < 9e15 && key.number() == std::floor(key.number());
  return whole ? member(static_cast<std::int64_t>(key.number())) : nullptr;
}

const Value* Value::member(const Key& key) const {
  const Dict* members = is_dict()                   ? &dict()
                        : as_namespace() != nullptr ? as_namespace()->members.get()
                        : as_loop() != nullptr      ? as_loop()->members.get()
                                                    : nullptr;
  if (members == nullptr) return nullptr;
  Budget::spend(3 * members->size());
  for (const auto& [name, value] : *members) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool equal(const Value& a, const Value& b) {
  Budget::spend(10);
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.integer() == b.integer() : a.number() == b.number();
  }
  if (a.is_string() && b.is_string()) {
    Budget::spend(std::min(a.string().size(), b.string().size()) / 8);
    return a.string() == b.string();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.is_list() && b.is_list()) {
    for (const Value* side : {&a, &b}) {
      if (!side->is_sequence(Sequence::kList) && !side->is_tuple()) {
        throw TemplateError("comparing a " + side->type_name() + " is not supported");
      }
    }
    if (a.is_tuple() != b.is_tuple() || a.list().size() != b.list().size()) return false;
    for (std::size_t i = 0; i < a.list().size(); ++i) {
      if (!equal(a.list()[i], b.list()[i])) return false;
    }
    return true;
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().size() != b.dict().size()) return false;
    for (const auto& [key, value] : a.dict()) {
      const Value* other = b.member(key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }
  return a.as_namespace() != nullptr && b.as_namespace() != nullptr &&
         a.as_namespace()->members == b.as_namespace()->members;
}

int compare(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (a.is_string() && b.is_string()) {
    Budget::spend(std::min(a.string().size(), b.string().size()) / 8);
    return a.string().compare(b.string());  // UTF-8 preserves code point order
  }
  const auto ordered = [](const Value& v) { return v.is_sequence(Sequence::kList) || v.is_tuple(); };
  if (ordered(a) && ordered(b) && a.is_tuple() == b.is_tuple()) {
    const std::size_t both = std::min(a.list().size(), b.list().size());
    for (std::size_t i = 0; i < both; ++i) {
      if (!equal(a.list()[i], b.list()[i])) return compare(a.list()[i], b.list()[i]);
    }
    return a.list().size() < b.list().size() ? -1 : a.list().size() > b.list().size();
  }
  throw TemplateError("ordering " + a.type_name() + " and " + b.type_name() + " is not supported");
}

bool contains(const Value& container, const Value& needle) {
  if (container.is_string()) {
    if (!needle.is_string()) throw TemplateError("'in' needs a string on its left, found " + needle.type_name());
    return TextSearch(needle.string()).find(container.string()) != std::string::npos;
  }
  if (container.is_dict()) return container.member_of(needle) != nullptr;
  if (container.is_generator()) {  // consumes items up to the one that it finds
    while (const auto item = container.take_first()) {
      if (equal(*item, needle)) return true;
    }
    return false;
  }
  if (container.is_list()) {
    for (const Value& item : container.list()) {
      if (equal(item, needle)) return true;
    }
    return false;
  }
  if (container.is_undefined()) return false;
  throw TemplateError("'in' cannot search in " + container.type_name());
}

List iterate(const Value& value) {
  Budget::spend(20 * value.weight());
  if (value.is_list()) {
    Budget::hold(sizeof(Value) * value.weight());
    return value.is_generator() ? value.take_items() : value.list();
  }
  List items;
  if (value.is_dict()) {
    for (const auto& [key, member] : value.dict()) items.push_back(key.value());
  } else if (value.is_string()) {
    for (std::size_t at = 0; at < value.string().size();) {
      const std::size_t bytes = decode_code_point(value.string(), at).bytes;
      items.emplace_back(value.string().substr(at, bytes));
      at += bytes;
    }
  } else if (!value.is_undefined()) {
    throw TemplateError("'" + value.type_name() + "' cannot be iterated");
  }
  return items;
}

}  // namespace oscar::jinja
