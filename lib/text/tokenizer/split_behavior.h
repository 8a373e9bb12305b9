// What becomes of the delimiters that a split pattern matches.
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

// One part for each character for which `is_match` holds, and one for each run between those.
std::vector<Part> split_by_character(std::string_view text, bool (*is_match)(char32_t));

}  // namespace oscar
