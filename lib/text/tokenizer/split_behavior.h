// How a split treats the matched delimiters.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer/pre_tokenizers.h"
#include "text/tokenizer/regex.h"

namespace oscar {

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

}  // namespace oscar
