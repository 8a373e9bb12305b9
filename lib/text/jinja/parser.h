// Parses templates to syntax trees with the grammar of Jinja 3 (recursive descent).
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace oscar::jinja {

// TemplateError with the line for a syntax error or an unsupported statement.
Body parse(const std::string& source);

// The position in a list of tokens, shared by the statement parser and the expression parser.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ < tokens_.size() - 1 ? at_++ : at_]; }
  bool is(TokenKind kind) const { return peek().kind == kind; }
  bool is_operator(const char* text) const { return is(TokenKind::kOperator) && peek().text == text; }
  bool is_name(const char* text) const { return is(TokenKind::kName) && peek().text == text; }
  bool skip_operator(const char* text) { return is_operator(text) && (next(), true); }
  bool skip_name(const char* text) { return is_name(text) && (next(), true); }
  void expect_operator(const char* text);
  std::string expect_name();
  [[noreturn]] void fail(const std::string& expected) const;

  // Limits the recursion of both parsers.
  class Nesting {
   public:
    explicit Nesting(TokenStream& stream);
    ~Nesting() { --stream_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    TokenStream& stream_;
  };

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& stream) : in_(stream) {}
  ExpressionPtr parse();
  // The same, or a tuple if commas follow. Conditions of `if` and the sequence of `for` are parsed without the
  // conditional expression, because "if" has another meaning there.
  ExpressionPtr parse_tuple(bool with_condition);
  // name(...), for a call block.
  ExpressionPtr parse_call_of_macro();
  // Names of variables read since the last call.
  std::set<std::string> take_names() { return std::exchange(names_, {}); }
  void add_names(const std::set<std::string>& names) { names_.insert(names.begin(), names.end()); }

 private:
  ExpressionPtr make(Expression::Kind kind, std::string name = "");
  using Level = ExpressionPtr (ExpressionParser::*)();  // the next stronger binding
  ExpressionPtr parse_joined(const char* word, Expression::Kind kind, Level next);
  ExpressionPtr parse_binary(std::initializer_list<const char*> operators, Level next);
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_filtered();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr subject);
  ExpressionPtr parse_subscript(ExpressionPtr subject);
  ExpressionPtr parse_call(ExpressionPtr callee);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr subject);
  ExpressionPtr parse_filter(ExpressionPtr subject);
  ExpressionPtr parse_test(ExpressionPtr subject);
  void parse_arguments(Expression& call);

  TokenStream& in_;
  std::set<std::string> names_;
};

}  // namespace oscar::jinja
