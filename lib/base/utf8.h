// One step through UTF-8 (RFC 3629): no overlong forms, no surrogates, at most U+10FFFF.
#pragma once

#include <cstddef>
#include <string_view>

namespace oscar {

struct Utf8Step {
  char32_t value = 0;  // 0 where not valid
  std::size_t bytes;   // length; where not valid, of the maximal ill-formed subpart (Unicode, section 3.9)
  bool valid;
};

// What stands at text[at], at < text.size().
Utf8Step utf8_step(std::string_view text, std::size_t at);

bool is_utf8(std::string_view text);

}  // namespace oscar
