// Decodes one UTF-8 character (RFC 3629): no overlong forms, no surrogates, at most U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace oscar {

struct Utf8Step {
  char32_t value = 0;  // 0 if not valid
  std::size_t bytes;   // length; if not valid, the length of the maximal ill-formed subpart (Unicode, section 3.9)
  bool valid;
};

// The character at text[at], with at < text.size().
Utf8Step utf8_step(std::string_view text, std::size_t at);

bool is_utf8(std::string_view text);

}  // namespace oscar
