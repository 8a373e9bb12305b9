// Filters, tests, methods and functions that templates call. An unknown one is a TemplateError that names it.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace oscar::jinja {

// What a call passes. take() gives the argument at a position or of a name, or Undefined; finish() refuses the rest.
class Arguments {
 public:
  Arguments(std::string where, std::vector<Value> positional, Dict named = {})
      : where_(std::move(where)), positional_(std::move(positional)), named_(std::move(named)) {}
  Value take(const char* name);  // the next positional argument, or the one of that name
  Value take(const char* name, Value fallback);
  Value take_rest();    // remaining positional arguments as a list
  void finish() const;  // TemplateError when an argument was not taken
  std::size_t left() const { return positional_.size() - next_; }
  Dict& named() { return named_; }
  const std::string& where() const { return where_; }

 private:
  std::string where_;
  std::vector<Value> positional_;
  Dict named_;
  std::size_t next_ = 0;
};

// No string that a template makes may be longer.
constexpr std::size_t kMaxText = std::size_t{64} << 20;
void check_text_size(std::size_t bytes);

// Strings as Python has them: positions are code points.
std::string strip(std::string_view text, const Value& characters, bool left, bool right);
std::int64_t text_length(std::string_view text);
std::string slice_text(const std::string& text, const Value& start, const Value& stop, const Value& step);
List slice_list(const List& list, const Value& start, const Value& stop, const Value& step);
std::string replace_all(const std::string& text, const Value& from, const Value& to, std::int64_t count);
std::string join(const List& items, const std::string& separator);
std::string lower(const std::string& text);
std::string upper(const std::string& text);  // TemplateError beyond ASCII, where Python's rules are longer
std::string capitalize(const std::string& text);
std::string title(const std::string& text);

// The filters that order and reduce lists; nothing for other names.
std::optional<Value> list_filter(const std::string& name, const Value& subject, Arguments& arguments);

Value call_method(const Value& object, const std::string& name, Arguments arguments);
Value call_filter(const std::string& name, const Value& subject, Arguments arguments);
bool call_test(const std::string& name, const Value& subject, Arguments arguments);
bool is_function(const std::string& name);
// `now` is the time that strftime_now gives, in local time.
Value call_function(const std::string& name, Arguments arguments, const std::tm& now);

Value get_attribute(const Value& object, const std::string& name);
Value get_item(const Value& object, const Value& key);
Value get_path(const Value& object, const Value& path);  // a member by a path such as "function.name"
Value binary(const std::string& op, const Value& left, const Value& right);

}  // namespace oscar::jinja
