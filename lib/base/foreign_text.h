// Text that comes from elsewhere (files, names, arguments), made safe to show. Every message, table and report passes
// through escape_text(): a name may hold bytes that move a terminal's cursor, color it, or show text in another order
// than it is stored in.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace oscar {

// Characters that are not shown as themselves: C0 controls, DEL, C1 controls, those that change the direction of text
// (Unicode Bidirectional Algorithm, UAX 9), line and paragraph separators, invisible format characters, tags, and the
// noncharacters that XML forbids.
bool is_unsafe(char32_t c);

enum class Lines { kOne, kMany };  // kMany keeps newlines and tabs

// Unsafe characters as \x1b (below 128), \u202e or \U000e0041, bytes that are not UTF-8 as \xff; everything else as it
// is, the backslash too, so that escaping twice changes nothing.
std::string escape_text(std::string_view text, Lines lines = Lines::kOne);

// escape_text() of one line, cut behind most_bytes of `text` (between characters) with "..." where there was more.
std::string printable(std::string_view text, std::size_t most_bytes = 80);

// `text` itself where it is UTF-8, else escape_text() of it: what JSON can hold.
std::string utf8_text(const std::string& text);

// printable(name) in single quotes.
std::string quote_name(std::string_view name);

}  // namespace oscar
