#include "text/tokenizer/split_behavior.h"

#include <algorithm>

#include "text/tokenizer/components.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

// Joins a delimiter to the previous word, unless that is also a delimiter.
std::vector<Part> merge_with_previous(const std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.match && !previous && !merged.empty()) {
      merged.back().end = part.end;
    } else {
      merged.push_back(part);
    }
    previous = part.match;
  }
  return merged;
}

std::vector<Part> merge_with_next(const std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool previous = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (part->match && !previous && !merged.empty()) {
      merged.back().begin = part->begin;
    } else {
      merged.push_back(*part);
    }
    previous = part->match;
  }
  std::reverse(merged.begin(), merged.end());
  return merged;
}

std::vector<Part> merge_contiguous(const std::vector<Part>& parts) {
  std::vector<Part> merged;
  bool previous = false;
  for (const Part& part : parts) {
    if (part.match == previous && !merged.empty()) {
      merged.back().end = part.end;
    } else {
      merged.push_back(part);
    }
    previous = part.match;
  }
  return merged;
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
      return append(merge_with_previous(parts), true);
    case SplitBehavior::kMergedWithNext:
      return append(merge_with_next(parts), true);
    case SplitBehavior::kContiguous:
      return append(merge_contiguous(parts), true);
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
