#include "base/foreign_text.h"

#include <algorithm>

#include "base/formatted.h"
#include "base/utf8.h"

namespace oscar {
namespace {

struct Range {
  char32_t first, last;
};

// Ascending. Joiners (U+200C, U+200D) belong to ordinary words of several scripts, so they are allowed.
constexpr Range kUnsafe[] = {
    {0x0000, 0x001F},    // C0
    {0x007F, 0x009F},    // DEL, C1
    {0x061C, 0x061C},    // Arabic letter mark
    {0x200B, 0x200B},    // zero width space
    {0x200E, 0x200F},    // left-to-right and right-to-left mark
    {0x2028, 0x202E},    // line and paragraph separator, embeddings and overrides
    {0x2060, 0x206F},    // word joiner, isolates, deprecated format characters
    {0xFEFF, 0xFEFF},    // byte order mark
    {0xFFF9, 0xFFFB},    // interlinear annotation
    {0xFFFE, 0xFFFF},    // noncharacters
    {0xE0000, 0xE007F},  // tags
};

std::string escape_of(char32_t c) {
  return formatted(c < 0x80 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", static_cast<unsigned>(c));
}

}  // namespace

bool is_unsafe(char32_t c) {
  return std::any_of(std::begin(kUnsafe), std::end(kUnsafe),
                     [c](const Range& range) { return c >= range.first && c <= range.last; });
}

std::string escape_text(std::string_view text, Lines lines) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    const bool kept = lines == Lines::kMany && (c == '\n' || c == '\t');
    if (kept || (c >= 0x20 && c < 0x7F)) {
      out += c;
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(text, at);
    if (step.valid && !is_unsafe(step.value)) {
      out.append(text.substr(at, step.bytes));
    } else if (step.valid) {
      out += escape_of(step.value);
    } else {
      for (const char byte : text.substr(at, step.bytes)) out += formatted("\\x%02x", static_cast<unsigned char>(byte));
    }
    at += step.bytes;
  }
  return out;
}

std::string printable(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return escape_text(text);
  std::size_t end = 0;
  for (std::size_t next = 0; next <= most_bytes; next += utf8_step(text, next).bytes) end = next;
  return escape_text(text.substr(0, end)) + "...";
}

std::string utf8_text(const std::string& text) { return is_utf8(text) ? text : escape_text(text, Lines::kMany); }

std::string quote_name(std::string_view name) { return "'" + printable(name) + "'"; }

}  // namespace oscar
