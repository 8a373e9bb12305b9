// Makes untrusted text (from files, names, arguments) safe to show. Every message, table and report passes through
// escape_text(). Raw bytes of a name could move a terminal's cursor, change colors or reverse the text direction.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace oscar {

// Characters that must be escaped:
// - C0 controls, DEL, C1 controls;
// - bidirectional controls (Unicode Bidirectional Algorithm, UAX 9);
// - line and paragraph separators, invisible format characters, tags;
// - the noncharacters that XML forbids.
bool is_unsafe(char32_t c);

enum class Lines { kOne, kMany };  // kMany keeps newlines and tabs

// Writes unsafe characters as \x1b (below 128), \u202e or \U000e0041, and bytes that are not UTF-8 as \xff. Everything
// else stays, including the backslash, so escaping twice changes nothing.
std::string escape_text(std::string_view text, Lines lines = Lines::kOne);

// escape_text() of one line, cut after most_bytes of `text` (between characters); "..." marks the cut.
std::string printable(std::string_view text, std::size_t most_bytes = 80);

// `text` itself if it is valid UTF-8, otherwise escape_text(text). The result can be stored in JSON.
std::string utf8_text(const std::string& text);

// printable(name) in single quotes.
std::string quote_name(std::string_view name);

}  // namespace oscar
