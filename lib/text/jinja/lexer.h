// Cuts a template into text and tags, and the inside of tags into tokens, with Jinja's white-space rules under
// trim_blocks and lstrip_blocks (the settings of transformers).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oscar::jinja {

enum class TokenKind {
  kText,         // outside tags; `text` is what is written
  kOutputBegin,  // {{
  kOutputEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,  // `text` is one of + - * ** / // % ~ == != < <= > >= = | . , : ( ) [ ] { }
  kEnd
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

// TemplateError for unclosed tags and strings, and for characters that no token begins with.
std::vector<Token> tokenize(const std::string& source);

}  // namespace oscar::jinja
