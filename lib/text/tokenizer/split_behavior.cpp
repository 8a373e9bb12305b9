#include "text/tokenizer/components.h"

#include <algorithm>

#include "text/unicode/unicode.h"

namespace oscar {
namespace {

// Joins a part to the word before it where `joins` says so of it and of the part before it: whether they are
// delimiters.
std::vector<Part> merged(const std::vector<Part>& parts, bool (*joins)(bool now, bool before)) {
  std::vector<Part> words;
  bool before = false;
  for (const Part& part : parts) {
    if (!joins(part.match, before) || words.empty()) {
      words.push_back(part);
    } else {
      words.back().begin = std::min(words.back().begin, part.begin);
      words.back().end = std::max(words.back().end, part.end);
    }
    before = part.match;
  }
  return words;
}

// A delimiter joins a word, but no other delimiter.
bool delimiter_to_word(bool now, bool before) { return now && !before; }

std::vector<Part> merged_with_next(const std::vector<Part>& parts) {
  const std::vector<Part> words = merged({parts.rbegin(), parts.rend()}, delimiter_to_word);
  return {words.rbegin(), words.rend()};
}

}  // namespace

SplitBehavior parse_split_behavior(const std::string& name, const std::string& where) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  refuse_component(where, "split behavior", name,
                   "Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous");
}

void append_split(const PreTokenized::Span& span, const std::vector<Part>& parts, SplitBehavior behavior,
                  std::vector<PreTokenized::Span>& out) {
  const auto append = [&](const std::vector<Part>& words, bool keep_matches) {
    for (const Part& word : words) {
      if (word.begin == word.end || (word.match && !keep_matches)) continue;
      out.push_back({span.begin + word.begin, span.begin + word.end, span.at_start && word.begin == 0});
    }
  };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      return append(parts, false);
    case SplitBehavior::kIsolated:
      return append(parts, true);
    case SplitBehavior::kMergedWithPrevious:
      return append(merged(parts, delimiter_to_word), true);
    case SplitBehavior::kMergedWithNext:
      return append(merged_with_next(parts), true);
    case SplitBehavior::kContiguous:
      return append(merged(parts, [](bool now, bool before) { return now == before; }), true);
  }
}

std::vector<Part> split_by_character(std::string_view text, bool (*is_match)(char32_t)) {
  std::vector<Part> parts;
  std::size_t covered = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    if (is_match(c.value)) {
      if (covered < at) parts.push_back({covered, at, false});
      parts.push_back({at, at + c.bytes, true});
      covered = at + c.bytes;
    }
    at += c.bytes;
  }
  if (covered < text.size()) parts.push_back({covered, text.size(), false});
  return parts;
}

}  // namespace oscar
