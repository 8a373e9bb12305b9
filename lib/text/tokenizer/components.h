// Common functions of the readers for tokenizer.json components.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/stages.h"

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

// How a split treats the matched delimiters.
// For "the-final--countdown" split at '-':
enum class SplitBehavior {
  kRemoved,             // the, final, countdown
  kIsolated,            // the, -, final, -, -, countdown
  kMergedWithPrevious,  // the-, final-, -, countdown
  kMergedWithNext,      // the, -final, -, -countdown
  kContiguous           // the, -, final, --, countdown
};

// InputError for an unknown name.
SplitBehavior parse_split_behavior(const std::string& name, const std::string& where);

// Appends the words of one span, given the parts of its text (offsets relative to the span).
void append_split(const PreTokenized::Span& span, const std::vector<Part>& parts, SplitBehavior behavior,
                  std::vector<PreTokenized::Span>& out);

// One part per character with `is_match`, and one per run between them.
std::vector<Part> split_by_character(std::string_view text, bool (*is_match)(char32_t));

// Handles unsupported tokenizers in a model directory without tokenizer.json.
// InputError for a missing tokenizer.json. It names the tokenizer.model, *.tiktoken or other file that holds the
// tokenizer in another form, and the command that converts it.
[[noreturn]] void refuse_missing_tokenizer(const fs::path& tokenizer_json);

}  // namespace oscar
