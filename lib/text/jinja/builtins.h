// Filters, tests, methods and functions for templates. An unknown one is a TemplateError that names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace oscar::jinja {

// The arguments of a call. take() returns the argument at a position or with a name, or Undefined; finish() rejects any
// remaining ones.
class Arguments {
 public:
  Arguments(std::string where, std::vector<Value> positional, Dict named = {})
      : where_(std::move(where)), positional_(std::move(positional)), named_(std::move(named)) {}
  Value take(const char* name);  // the next positional argument, or the one with that name
  Value take(const char* name, Value fallback);
  std::optional<Value> take_given(const char* name);  // nullopt if it was not passed
  Value take_rest();                                  // remaining positional arguments as a list
  void finish() const;                                // TemplateError if an argument was not taken
  std::size_t left() const { return positional_.size() - next_; }
  Dict& named() { return named_; }
  const std::string& where() const { return where_; }

 private:
  std::string where_;
  std::vector<Value> positional_;
  Dict named_;
  std::size_t next_ = 0;
};

// The maximum size of a string made by a template.
constexpr std::size_t kMaxText = std::size_t{64} << 20;
void check_text_size(std::size_t bytes);

// Strings as in Python: positions are code points.
std::string strip(std::string_view text, const Value& characters, bool left, bool right);
std::int64_t text_length(std::string_view text);
std::string slice_text(const std::string& text, const Value& start, const Value& stop, const Value& step);
List slice_list(const List& list, const Value& start, const Value& stop, const Value& step);
std::string replace_all(const std::string& text, const Value& from, const Value& to, std::int64_t count);
std::string join(const List& items, const std::string& separator);
std::string lower(const std::string& text);
std::string upper(const std::string& text);  // TemplateError for characters with more than one uppercase character
std::string capitalize(const std::string& text);
std::string title(const std::string& text);           // as in Python: letters after any non-letter
std::string title_of_words(const std::string& text);  // the Jinja filter: letters after white space and -([{<

// The filters that order and reduce lists; nullopt for other names.
std::optional<Value> list_filter(const std::string& name, const Value& subject, Arguments& arguments);

// The number that Python's float(text) or int(text) returns; nullopt if it raises ValueError.
std::optional<double> parse_float(const std::string& text);
std::optional<std::int64_t> parse_integer(const std::string& text);

Value call_method(const Value& object, const std::string& name, Arguments arguments);
Value call_filter(const std::string& name, const Value& subject, Arguments arguments);
bool call_test(const std::string& name, const Value& subject, Arguments arguments);
bool is_function(const std::string& name);
// `now` is the local time for strftime_now.
Value call_function(const std::string& name, Arguments arguments, const std::tm& now);

Value get_attribute(const Value& object, const std::string& name);
Value get_item(const Value& object, const Value& key);
Value get_path(const Value& object, const Value& path);  // a member by a path such as "function.name"
Value binary(const std::string& op, const Value& left, const Value& right);

// Searches for a string in linear time (Knuth, Morris and Pratt 1977). For repetitive texts, std::string::find takes
// time proportional to the product of both lengths. Charges the scanned bytes to the budget.
class TextSearch {
 public:
  // `needle` must outlive the search. from_right: finds the last places first.
  explicit TextSearch(std::string_view needle, bool from_right = false);

  // The first place at or after `from`; npos if there is none.
  std::size_t find(std::string_view text, std::size_t from = 0) const;
  // The last place that ends at or before `end`; for a search with from_right.
  std::size_t find_before(std::string_view text, std::size_t end) const;

 private:
  template <typename At>
  std::size_t scan(std::size_t length, At at) const;
  char needle_at(std::size_t i) const { return from_right_ ? needle_[needle_.size() - 1 - i] : needle_[i]; }

  std::string_view needle_;
  bool from_right_;
  std::vector<std::uint32_t> border_;  // [needle]: length of the longest proper prefix that ends at this character
};

}  // namespace oscar::jinja
