#include "text/jinja/lexer.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "text/jinja/value.h"
#include "text/unicode/unicode.h"

namespace oscar::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// Python's \s for the characters in templates, including Unicode.
std::size_t space_length(std::string_view text, std::size_t at) {
  if (at >= text.size()) return 0;
  const CodePoint c = decode_code_point(text, at);
  return is_whitespace(c.value) || (c.value >= 0x1C && c.value <= 0x1F) ? c.bytes : 0;
}

std::string_view strip_right(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = decode_code_point_before(text, text.size());
    if (!is_whitespace(c.value) && (c.value < 0x1C || c.value > 0x1F)) break;
    text.remove_suffix(c.bytes);
  }
  return text;
}

// Converts line ends to
//  and drops one at the very end.
std::string normalize_lines(const std::string& source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(const std::string& source) : text_(normalize_lines(source)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) read_text_and_tag();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw TemplateError("line " + std::to_string(line_) + ": " + what);
  }
  bool at(std::string_view s) const { return std::string_view(text_).substr(at_, s.size()) == s; }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(std::size_t bytes) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
  }

  // Reads text up to the next tag, removes what the tag strips, then reads the tag.
  void read_text_and_tag() {
    std::size_t tag = at_;
    while (tag < text_.size() && !(text_[tag] == '{' && tag + 1 < text_.size() &&
                                   (text_[tag + 1] == '{' || text_[tag + 1] == '%' || text_[tag + 1] == '#'))) {
      ++tag;
    }
    std::string_view text = std::string_view(text_).substr(at_, tag - at_);
    const bool last = tag == text_.size();
    const char kind = last ? ' ' : text_[tag + 1];
    const char sign = last || tag + 2 >= text_.size() ? ' ' : text_[tag + 2];
    add_text(text, last ? '+' : sign, kind != '{');
    advance(tag - at_);
    if (last || (kind == '%' && read_raw())) return;
    const bool signed_begin = sign == '-' || sign == '+';
    advance(signed_begin ? 3 : 2);
    if (kind == '#') {
      read_comment();
    } else {
      read_tag(kind == '{');
    }
  }

  // Adds text before a tag that starts with `sign`.
  void add_text(std::string_view text, char sign, bool before_block) {
    const bool line_start = at_ == 0 || text_[at_ - 1] == '\n';  // whether this text starts a line
    if (sign == '-') {
      text = strip_right(text);
    } else if (before_block && sign != '+') {  // lstrip_blocks
      const std::size_t newline = text.rfind('\n');
      const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((newline != std::string_view::npos || line_start) && strip_right(text.substr(begin)).empty()) {
        text = text.substr(0, begin);
      }
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  // A block of one word: its signs and its end.
  struct WordBlock {
    char before, after;
    std::size_t end;
  };
  std::optional<WordBlock> word_block(std::size_t at, std::string_view word) const {
    WordBlock block{' ', ' ', at + 2};
    const auto skip_space = [&] {
      while (const std::size_t n = space_length(text_, block.end)) block.end += n;
    };
    const auto next_is = [&](std::string_view s) { return std::string_view(text_).substr(block.end, s.size()) == s; };
    if (next_is("-") || next_is("+")) block.before = text_[block.end++];
    skip_space();
    if (!next_is(word)) return std::nullopt;
    block.end += word.size();
    skip_space();
    if (next_is("-") || (next_is("+") && word != "raw")) block.after = text_[block.end++];
    if (!next_is("%}")) return std::nullopt;
    block.end += 2;
    return block;
  }

  // {% raw %}, text without tags, {% endraw %}; false for any other block.
  bool read_raw() {
    const auto begin = word_block(at_, "raw");
    if (!begin) return false;
    advance(begin->end - at_);
    after_tag(begin->after, false);
    for (std::size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 2)) {
      const auto end = word_block(tag, "endraw");
      if (!end) continue;
      add_text(std::string_view(text_).substr(at_, tag - at_), end->before, true);
      advance(end->end - at_);
      after_tag(end->after, true);
      return true;
    }
    fail("a raw block is not closed");
  }

  void read_comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string::npos) fail("a comment is not closed");
    const char before = end > at_ ? text_[end - 1] : ' ';
    advance(end + 2 - at_);
    after_tag(before, true);
  }

  // White space after a tag: all of it after '-', one newline after a block or comment (trim_blocks).
  void after_tag(char sign, bool block) {
    if (sign == '-') {
      while (const std::size_t n = space_length(text_, at_)) advance(n);
    } else if (block && sign != '+' && at("\n")) {
      advance(1);
    }
  }

  void read_tag(bool output) {
    add(output ? TokenKind::kOutputBegin : TokenKind::kBlockBegin, "");
    const std::string_view close = output ? "}}" : "%}";
    std::string open;  // open brackets: a closing brace inside them does not end the tag
    while (true) {
      while (const std::size_t n = space_length(text_, at_)) advance(n);
      if (at_ >= text_.size()) fail("a tag is not closed");
      if (open.empty()) {
        const char c = text_[at_];
        const bool sign = (c == '-' || (c == '+' && !output)) && std::string_view(text_).substr(at_ + 1, 2) == close;
        if (sign || at(close)) {
          add(output ? TokenKind::kOutputEnd : TokenKind::kBlockEnd, "");
          advance(sign ? 3 : 2);
          after_tag(sign ? c : ' ', !output);
          return;
        }
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = text_[at_];
    if (c == '"' || c == '\'') return read_string(c);
    if (is_digit(c)) return read_number();
    if (is_name_start(c)) {
      std::size_t end = at_;
      while (end < text_.size() && (is_name_start(text_[end]) || is_digit(text_[end]))) ++end;
      add(TokenKind::kName, text_.substr(at_, end - at_));
      return advance(end - at_);
    }
    for (const std::string_view op : {"**", "//", "==", "!=", "<=", ">="}) {
      if (at(op)) {
        add(TokenKind::kOperator, std::string(op));
        return advance(2);
      }
    }
    if (std::string_view("+-*/%~<>=|.,:()[]{}").find(c) == std::string_view::npos) {
      fail(std::string("unexpected character '") + c + "' in a tag");
    }
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(std::string("unexpected '") + c + "'");
      open.pop_back();
    }
    add(TokenKind::kOperator, std::string(1, c));
    advance(1);
  }

  void read_number() {
    std::size_t end = at_;
    bool fraction = false;
    while (end < text_.size() && (is_digit(text_[end]) || text_[end] == '_')) ++end;
    if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      fraction = true;
      ++end;
      while (end < text_.size() && (is_digit(text_[end]) || text_[end] == '_')) ++end;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      std::size_t digits = end + 1;
      if (digits < text_.size() && (text_[digits] == '+' || text_[digits] == '-')) ++digits;
      if (digits < text_.size() && is_digit(text_[digits])) {
        fraction = true;
        for (end = digits; end < text_.size() && is_digit(text_[end]);) ++end;
      }
    }
    if (end < text_.size() && is_name_start(text_[end])) fail("this form of number is not supported");
    std::string digits = text_.substr(at_, end - at_);
    std::erase(digits, '_');
    add(fraction ? TokenKind::kFloat : TokenKind::kInteger, digits);
    advance(end - at_);
  }

  void read_string(char quote) {
    std::string value;
    std::size_t i = at_ + 1;
    for (; i < text_.size() && text_[i] != quote; ++i) {
      if (text_[i] != '\\') {
        value += text_[i];
        continue;
      }
      if (++i == text_.size()) break;
      i = read_escape(i, value);
    }
    if (i >= text_.size()) fail("a string is not closed");
    add(TokenKind::kString, value);
    advance(i + 1 - at_);
  }

  // Python's escapes; text_[i] is the character after the backslash. Returns the last position read.
  std::size_t read_escape(std::size_t i, std::string& value) const {
    const char c = text_[i];
    static constexpr std::string_view kNames = "ntr\\'\"abfv", kValues = "\n\t\r\\'\"\a\b\f\v";
    if (const auto known = kNames.find(c); known != std::string_view::npos) {
      value += kValues[known];
      return i;
    }
    if (c == '\n') return i;  // a continued line
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      if (is_digit(c) || c == 'N') fail("this escape in a string is not supported");
      value += '\\';
      value += c;
      return i;
    }
    char32_t point = 0;
    for (std::size_t k = 1; k <= digits; ++k) {
      const char h = i + k < text_.size() ? text_[i + k] : ' ';
      const int digit = is_digit(h)            ? h - '0'
                        : h >= 'a' && h <= 'f' ? h - 'a' + 10
                        : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                               : -1;
      if (digit < 0 || point > 0x110000) fail("an escape in a string is damaged");
      point = point * 16 + static_cast<char32_t>(digit);
    }
    if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) fail("an escape in a string is not a character");
    append_utf8(value, point);
    return i + digits;
  }

  const std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const std::string& source) { return Lexer(source).run(); }

}  // namespace oscar::jinja
