#include "text/unicode/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/utf8.h"
#include "text/unicode/unicode_tables.h"

namespace oscar {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

}  // namespace

CodePoint decode_code_point(std::string_view text, std::size_t at) {
  const unsigned char lead = byte_at(text, at);
  if (lead < 0x80) return {lead, 1};
  const auto tail = [&](std::size_t k) { return static_cast<char32_t>(byte_at(text, at + k) & 0x3F); };
  if (lead < 0xE0) return {(static_cast<char32_t>(lead & 0x1F) << 6) | tail(1), 2};
  if (lead < 0xF0) return {(static_cast<char32_t>(lead & 0x0F) << 12) | (tail(1) << 6) | tail(2), 3};
  return {(static_cast<char32_t>(lead & 0x07) << 18) | (tail(1) << 12) | (tail(2) << 6) | tail(3), 4};
}

CodePoint decode_code_point_before(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && (byte_at(text, at) & 0xC0) == 0x80) --at;
  return decode_code_point(text, at);
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid) return at;
    at += step.bytes;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (step.valid) {
      out.append(text.substr(at, step.bytes));
    } else {
      out += "\xEF\xBF\xBD";
    }
    at += step.bytes;
  }
  return out;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_whitespace(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  return find_row(CodeTable::kWord, c) != nullptr;
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return find_row(CodeTable::kNumeric, c) != nullptr;
}

bool is_punctuation(char32_t c) { return find_row(CodeTable::kPunctuation, c) != nullptr; }

bool is_mark(char32_t c) { return c >= 0x300 && find_row(CodeTable::kMark, c) != nullptr; }

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {  // the only character whose lowercase has two characters (SpecialCasing.txt)
    out += "i\xCC\x87";
  } else if (const CodeRange* young = find_row(CodeTable::kYoungLowerCase, c)) {
    append_utf8(out, young->value + (c - young->first));
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

std::size_t GraphemeBreaks::next(std::string_view text, std::size_t at) {
  CodePoint before = decode_code_point(text, at);
  at += before.bytes;
  while (at < text.size()) {
    const CodePoint c = decode_code_point(text, at);
    if (before.value < 0x300 && c.value < 0x300) {  // no two of these form a cluster, except a line end
      state_ = 0;
      if (before.value != '\r' || c.value != '\n') break;
    } else if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before.value),
                                                static_cast<utf8proc_int32_t>(c.value), &state_)) {
      break;
    }
    before = c;
    at += c.bytes;
  }
  return at;
}

namespace {

bool is_inert(char32_t c) {
  if (c < 0x7FD || (c > 0x32FF && c < 0xA7F2)) return false;  // most text
  return find_row(CodeTable::kInert, c) != nullptr;
}

int combining_class(utf8proc_int32_t c) {
  if (c < 0x300) return 0;
  const int known = utf8proc_get_property(c)->combining_class;
  return known != 0 && is_inert(static_cast<char32_t>(c)) ? 0 : known;
}

void append_decomposition(char32_t c, utf8proc_option_t options, std::vector<utf8proc_int32_t>& out) {
  if (c < 0x80 || is_inert(c)) {
    out.push_back(static_cast<utf8proc_int32_t>(c));
    return;
  }
  utf8proc_int32_t parts[32];  // the longest decomposition has 18 code points
  int boundary = 0;
  const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts, 32, options, &boundary);
  out.insert(out.end(), parts, parts + (n > 0 && n <= 32 ? n : 0));
}

// Canonical ordering: sorts each run of characters with a non-zero combining class stably by class.
void order_marks(std::vector<utf8proc_int32_t>& points) {
  for (auto run = points.begin(); run != points.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, points.end(), [](auto c) { return combining_class(c) == 0; });
    std::stable_sort(run, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
}

// Canonical composition. Inert characters compose with nothing and separate the characters before and after them.
void compose_points(std::vector<utf8proc_int32_t>& points) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto inert = [](utf8proc_int32_t c) { return is_inert(static_cast<char32_t>(c)); };
  auto out = points.begin();
  for (auto run = points.begin(); run != points.end();) {
    const auto end = std::find_if(run, points.end(), inert);
    const auto length = utf8proc_normalize_utf32(&*run, end - run, kOptions);
    out = std::copy(run, run + std::max<utf8proc_ssize_t>(length, 0), out);
    run = end;
    for (; run != points.end() && inert(*run); ++run) *out++ = *run;
  }
  points.erase(out, points.end());
}

}  // namespace

std::string normalize_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    at += c.bytes;
    append_decomposition(c.value, options, points);
  }
  order_marks(points);
  if (compose) compose_points(points);
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (const auto c : points) append_utf8(out, static_cast<char32_t>(c));
  return out;
}

}  // namespace oscar
