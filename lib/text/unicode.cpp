#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

namespace oscar {
namespace {

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

// Length of the valid sequence at `at`, or 0 and the length of the maximal ill-formed subpart in *bad.
std::size_t sequence_length(std::string_view text, std::size_t at, std::size_t* bad) {
  const unsigned char lead = byte_at(text, at);
  if (lead < 0x80) return 1;
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;  // allowed range of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  *bad = 1;
  if (length == 0) return 0;
  for (std::size_t k = 1; k < length; ++k) {
    if (at + k >= text.size()) return 0;
    const unsigned char c = byte_at(text, at + k);
    if (c < low || c > high) return 0;
    low = 0x80;
    high = 0xBF;
    *bad = k + 1;
  }
  return length;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

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
  std::size_t bad = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_length(text, at, &bad);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t bad = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = sequence_length(text, at, &bad);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      at += bad;
    } else {
      out.append(text.substr(at, length));
      at += length;
    }
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
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_SO:  // circled and squared letters have the property Alphabetic
      return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
             (c >= 0x1F170 && c <= 0x1F189);
    default:
      return c == 0x200C || c == 0x200D;  // Join_Control
  }
}

bool is_numeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool is_mark(char32_t c) {
  const auto k = category(c);
  return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

void append_lowercase(std::string& out, char32_t c) {
  if (c == 0x130) {  // the one character whose lower case is two (SpecialCasing.txt)
    out += "i\xCC\x87";
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

std::string normalize_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  utf8proc_int32_t parts[32];  // the longest decomposition is 18 code points
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = decode_code_point(text, at);
    at += c.bytes;
    if (c.value < 0x80) {
      points.push_back(static_cast<utf8proc_int32_t>(c.value));
      continue;
    }
    int boundary = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.value), parts, 32, options, &boundary);
    points.insert(points.end(), parts, parts + (n > 0 && n <= 32 ? n : 0));
  }
  // Canonical ordering: each run of characters with a non-zero combining class, stably by class.
  const auto klass = [](utf8proc_int32_t c) { return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class; };
  for (std::size_t i = 0; i < points.size();) {
    if (klass(points[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < points.size() && klass(points[end]) != 0) ++end;
    if (end - i > 1) {
      std::stable_sort(points.begin() + static_cast<std::ptrdiff_t>(i),
                       points.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](auto a, auto b) { return klass(a) < klass(b); });
    }
    i = end;
  }
  if (compose) {
    const auto n = utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()),
                                            static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    points.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  }
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (const auto c : points) append_utf8(out, static_cast<char32_t>(c));
  return out;
}

}  // namespace oscar
