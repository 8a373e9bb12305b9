#include "base/markup.h"

#include <algorithm>

#include "base/foreign_text.h"

namespace oscar {
namespace {

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c & 0x80) != 0;
}

std::size_t longest_run(std::string_view text, char wanted) {
  std::size_t longest = 0, run = 0;
  for (const char c : text) {
    run = c == wanted ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

}  // namespace

std::string markdown_text(std::string_view text) {
  constexpr std::string_view kAnywhere = "\\`*[]|~!", kAtStart = "#-+=";
  const std::string safe = escape_text(text);
  std::string out;
  for (std::size_t i = 0; i < safe.size(); ++i) {
    const char c = safe[i];
    const bool in_word =
        i > 0 && i + 1 < safe.size() && is_letter_or_digit(safe[i - 1]) && is_letter_or_digit(safe[i + 1]);
    if (c == '<' || c == '>' || c == '&') {
      out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : "&amp;";
      continue;
    }
    if (kAnywhere.find(c) != std::string_view::npos || (i == 0 && kAtStart.find(c) != std::string_view::npos) ||
        (c == '_' && !in_word)) {
      out += '\\';
    }
    out += c;
  }
  return out;
}

std::string markdown_code(std::string_view text) {
  std::string code;
  for (const char c : escape_text(text)) {
    if (c == '|') code += '\\';  // in a table row it would otherwise end the cell, even inside code
    code += c;
  }
  const std::string fence(longest_run(code, '`') + 1, '`');
  const bool padded = code.empty() || code.front() == '`' || code.back() == '`';
  return fence + (padded ? " " + code + " " : code) + fence;
}

std::string with_entities(std::string_view text) {
  constexpr std::string_view kCharacters = "&<>\"'", kEntities[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
  std::string out;
  for (const char c : text) {
    const std::size_t found = kCharacters.find(c);
    out += found == std::string_view::npos ? std::string_view(&c, 1) : kEntities[found];
  }
  return out;
}

}  // namespace oscar
