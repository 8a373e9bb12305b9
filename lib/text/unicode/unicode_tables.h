// Sets of code points that do not depend on the Unicode version of the system's libraries.
// tests/oracles/make_unicode_tables.py writes them to code_points.txt: the name of a table, then its rows FIRST,
// FIRST-LAST or FIRST-LAST>VALUE, hexadecimal.
#pragma once

#include <vector>

namespace oscar {

// Sorted, without overlap.
struct CodeRange {
  char32_t first, last, value;
};

// In the order of the file.
enum class CodeTable {
  kWord,            // \w: letters, marks, decimal and letter numbers, connectors, joiners
  kNumeric,         // category N
  kPunctuation,     // category P, and all ASCII punctuation
  kMark,            // category M
  kInert,           // normal forms do not change these
  kYoungLowerCase,  // lowercase of recently added letters; it increases with the code point inside a range
  kStandIn  // unknown to old regular expression libraries, each with an older one of the same class and UTF-8 length
};

const std::vector<CodeRange>& code_ranges(CodeTable table);

// The row of the table that contains c, or null.
const CodeRange* find_row(CodeTable table, char32_t c);

}  // namespace oscar
