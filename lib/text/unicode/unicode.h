// UTF-8, the character classes that tokenizers use, and Unicode normal forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/foreign_text.h"

namespace oscar {

struct CodePoint {
  char32_t value;
  std::uint32_t bytes;  // length of its UTF-8 form
};

// The code point that starts at text[at]; `text` must be valid UTF-8.
CodePoint decode_code_point(std::string_view text, std::size_t at);
// The code point that ends just before `end` (> 0).
CodePoint decode_code_point_before(std::string_view text, std::size_t end);
void append_utf8(std::string& out, char32_t value);

// Position of the first byte that is not valid UTF-8 (RFC 3629); npos if there is none.
std::size_t find_invalid_utf8(std::string_view text);
// Replaces each maximal subpart of an ill-formed sequence by one U+FFFD (Unicode, section 3.9), like Python and Rust.
std::string replace_invalid_utf8(std::string_view text);

bool is_ascii(std::string_view text);
bool is_whitespace(char32_t c);   // the property White_Space
bool is_word(char32_t c);         // \w of UTS 18: letters, marks, decimal and letter numbers, connectors, joiners
bool is_numeric(char32_t c);      // category N*
bool is_punctuation(char32_t c);  // category P*, and every ASCII punctuation character
bool is_mark(char32_t c);         // category M*
void append_lowercase(std::string& out, char32_t c);  // full mapping, without context

// Finds extended grapheme clusters (UAX 29) in order.
class GraphemeBreaks {
 public:
  // The end of the cluster that starts at text[at].
  std::size_t next(std::string_view text, std::size_t at);

 private:
  int state_ = 0;
};

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Linear in the text, except for sorting runs of combining marks (n log n), so that hostile runs of marks stay cheap.
std::string normalize_form(std::string_view text, NormalForm form);

}  // namespace oscar
