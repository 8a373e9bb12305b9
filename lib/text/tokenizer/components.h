// Common functions of the readers for tokenizer.json components.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/tokenizer/regex.h"

namespace oscar {

// InputError: "<where>: the <part> 'X' is not supported; supported are ...; pass input_ids rows instead".
[[noreturn]] void refuse_component(const std::string& where, const std::string& part, const std::string& type,
                                   const std::string& supported);

// InputError if a component with its nested components exceeds any real tokenizer's number, because each one processes
// the entire text.
void require_few_steps(const Json& description, const std::string& part, const std::string& where);

// A required member. The Python package refuses files without it, so there is no default.
bool need_bool(const Json& object, const char* key, const std::string& where);

// {"String": "..."} or {"Regex": "..."}.
class TextPattern {
 public:
  TextPattern(const Json& component, const std::string& where);  // reads the member "pattern"
  std::vector<Part> split(std::string_view text) const;
  bool is_regex() const { return regex_ != nullptr; }

 private:
  std::shared_ptr<const Regex> regex_;
  std::string plain_;
};

// GPT-2's reversible map from bytes to printable characters (below U+0800).
std::string_view byte_to_text(unsigned char byte);
int text_to_byte(char32_t c);  // -1 for a character outside the map

}  // namespace oscar
