// Splits a template into text and tags, and the inside of tags into tokens. Follows Jinja's white-space rules with
// trim_blocks and lstrip_blocks (the settings of transformers).
#pragma once

#include <string>
#include <vector>

namespace oscar::jinja {

enum class TokenKind {
  kText,         // outside tags; `text` is the output
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

// TemplateError for unclosed tags and strings, and for characters that cannot start a token.
std::vector<Token> tokenize(const std::string& source);

}  // namespace oscar::jinja
