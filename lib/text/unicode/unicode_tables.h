// Sets of code points that do not depend on the Unicode version of the system's libraries (unicode_tables.cpp gives
// their source). All tables are sorted and without overlap.
#pragma once

#include <algorithm>
#include <span>

namespace oscar {

struct CodeRange {
  char32_t first, last;
};
struct MappedRange {
  char32_t first, last, value;
};

std::span<const CodeRange> word_ranges();         // \w: letters, marks, decimal and letter numbers, connectors, joiners
std::span<const CodeRange> numeric_ranges();      // category N
std::span<const CodeRange> punctuation_ranges();  // category P, and all ASCII punctuation
std::span<const CodeRange> mark_ranges();         // category M
std::span<const CodeRange> inert_ranges();        // normal forms do not change these
// Lowercase of recently added letters; it increases with the code point inside a range.
std::span<const MappedRange> young_lower_case_ranges();
// Code points unknown to old regular expression libraries, each with an older one of the same class and UTF-8 length.
std::span<const MappedRange> stand_in_ranges();

// The row that contains c, or null.
template <typename Row>
const Row* find_row(std::span<const Row> rows, char32_t c) {
  const auto it =
      std::upper_bound(rows.begin(), rows.end(), c, [](char32_t v, const Row& row) { return v < row.first; });
  return it == rows.begin() || c > (it - 1)->last ? nullptr : &*(it - 1);
}

}  // namespace oscar
