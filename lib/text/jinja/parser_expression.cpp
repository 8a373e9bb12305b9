// Expressions, from the weakest to the strongest binding.
#include <algorithm>
#include <charconv>

#include "base/foreign_text.h"
#include "text/jinja/parser.h"

namespace oscar::jinja {
namespace {

using Kind = Expression::Kind;

constexpr int kMaxDepth = 200;  // of the parser
constexpr int kMaxTree = 300;   // of the tree; chains of operators also make it deep

}  // namespace

TokenStream::Nesting::Nesting(TokenStream& stream) : stream_(stream) {
  if (++stream_.depth_ > kMaxDepth) stream_.fail("less nesting");
}

void TokenStream::expect_operator(const char* text) {
  if (!skip_operator(text)) fail("'" + std::string(text) + "'");
}

std::string TokenStream::expect_name() {
  if (!is(TokenKind::kName)) fail("a name");
  return next().text;
}

void TokenStream::fail(const std::string& expected) const {
  static const char* const kNames[] = {"text", "'{{'", "'}}'", "'{%'", "'%}'", "", "a string", "", "", "", "the end"};
  const Token& token = peek();
  const std::string kind = kNames[static_cast<int>(token.kind)];
  throw TemplateError("line " + std::to_string(token.line) + ": found " +
                      (kind.empty() ? quote_name(token.text) : kind) + ", expected " + expected);
}

void Expression::add(ExpressionPtr item) {
  if (item != nullptr) depth = std::max(depth, item->depth + 1);
  if (depth > kMaxTree) throw TemplateError("line " + std::to_string(line) + ": an expression is too long");
  items.push_back(std::move(item));
}

ExpressionPtr ExpressionParser::make(Kind kind, std::string name) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = in_.peek().line;
  made->name = std::move(name);
  return made;
}

ExpressionPtr ExpressionParser::parse() {
  const TokenStream::Nesting nesting(in_);
  ExpressionPtr value = parse_or();
  while (in_.skip_name("if")) {
    ExpressionPtr condition = make(Kind::kCondition);
    condition->add(std::move(value));
    condition->add(parse_or());
    condition->add(in_.skip_name("else") ? parse() : nullptr);
    value = std::move(condition);
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_condition) {
  const auto one = [&] { return with_condition ? parse() : parse_or(); };
  ExpressionPtr value = one();
  if (!in_.is_operator(",")) return value;
  ExpressionPtr list = make(Kind::kTuple);
  list->add(std::move(value));
  while (in_.skip_operator(",")) {
    if (in_.is(TokenKind::kBlockEnd) || in_.is(TokenKind::kOutputEnd) || in_.is_operator(")")) break;
    list->add(one());
  }
  return list;
}

ExpressionPtr ExpressionParser::parse_joined(const char* word, Kind kind, Level next) {
  ExpressionPtr left = (this->*next)();
  while (in_.skip_name(word)) {
    ExpressionPtr both = make(kind);
    both->add(std::move(left));
    both->add((this->*next)());
    left = std::move(both);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_or() { return parse_joined("or", Kind::kOr, &ExpressionParser::parse_and); }

ExpressionPtr ExpressionParser::parse_and() { return parse_joined("and", Kind::kAnd, &ExpressionParser::parse_not); }

ExpressionPtr ExpressionParser::parse_not() {
  const TokenStream::Nesting nesting(in_);
  if (!in_.skip_name("not")) return parse_compare();
  ExpressionPtr negated = make(Kind::kNot);
  negated->add(parse_not());
  return negated;
}

ExpressionPtr ExpressionParser::parse_compare() {
  ExpressionPtr first = parse_sum();
  ExpressionPtr chain;
  while (true) {
    std::string found;
    for (const char* op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (found.empty() && in_.skip_operator(op)) found = op;
    }
    if (found.empty() && in_.skip_name("in")) found = "in";
    if (found.empty() && in_.is_name("not") && in_.peek(1).kind == TokenKind::kName && in_.peek(1).text == "in") {
      in_.next();
      in_.next();
      found = "not in";
    }
    if (found.empty()) return chain != nullptr ? std::move(chain) : std::move(first);
    if (chain == nullptr) {
      chain = make(Kind::kCompare);
      chain->add(std::move(first));
    }
    chain->operators.push_back(found);
    chain->add(parse_sum());
  }
}

ExpressionPtr ExpressionParser::parse_binary(std::initializer_list<const char*> operators, Level next) {
  const auto found = [&] {
    return std::any_of(operators.begin(), operators.end(), [&](const char* text) { return in_.is_operator(text); });
  };
  ExpressionPtr left = (this->*next)();
  while (found()) {
    ExpressionPtr node = make(Kind::kBinary, in_.next().text);
    node->add(std::move(left));
    node->add((this->*next)());
    left = std::move(node);
  }
  return left;
}

ExpressionPtr ExpressionParser::parse_sum() { return parse_binary({"+", "-"}, &ExpressionParser::parse_concatenation); }

ExpressionPtr ExpressionParser::parse_concatenation() { return parse_binary({"~"}, &ExpressionParser::parse_product); }

ExpressionPtr ExpressionParser::parse_product() {
  return parse_binary({"*", "/", "//", "%"}, &ExpressionParser::parse_power);
}

ExpressionPtr ExpressionParser::parse_power() { return parse_binary({"**"}, &ExpressionParser::parse_filtered); }

ExpressionPtr ExpressionParser::parse_filtered() { return parse_unary(true); }

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const TokenStream::Nesting nesting(in_);
  ExpressionPtr value;
  if (in_.is_operator("-") || in_.is_operator("+")) {
    value = make(Kind::kUnary, in_.next().text);
    value->add(parse_unary(false));
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters_and_tests(std::move(value)) : std::move(value);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token& token = in_.peek();
  ExpressionPtr value = make(Kind::kConstant);
  if (token.kind == TokenKind::kString) {
    std::string text;
    while (in_.is(TokenKind::kString)) text += in_.next().text;  // joins adjacent strings
    value->value = text;
  } else if (token.kind == TokenKind::kInteger) {
    std::int64_t number = 0;
    const auto done = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
    if (done.ec != std::errc()) in_.fail("a number of at most 63 bits");
    value->value = number;
    in_.next();
  } else if (token.kind == TokenKind::kFloat) {
    double number = 0.0;
    const auto done = std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
    if (done.ec != std::errc()) in_.fail("a number that fits 64 bits");
    value->value = number;
    in_.next();
  } else if (token.kind == TokenKind::kName) {
    const std::string name = in_.next().text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      value->value = name[0] == 't' || name[0] == 'T';
    } else if (name == "none" || name == "None") {
      value->value = None{};
    } else {
      value->kind = Kind::kName;
      value->name = name;
      names_.insert(name);
    }
  } else if (in_.skip_operator("(")) {
    if (in_.is_operator(")")) {
      value->kind = Kind::kTuple;
    } else {
      value = parse_tuple(true);
    }
    in_.expect_operator(")");
  } else if (in_.is_operator("[")) {
    return parse_list();
  } else if (in_.is_operator("{")) {
    return parse_dict();
  } else {
    in_.fail("an expression");
  }
  return value;
}

ExpressionPtr ExpressionParser::parse_list() {
  ExpressionPtr list = make(Kind::kList);
  in_.expect_operator("[");
  while (!in_.is_operator("]")) {
    list->add(parse());
    if (!in_.is_operator("]")) in_.expect_operator(",");
  }
  in_.expect_operator("]");
  return list;
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr dict = make(Kind::kDict);
  in_.expect_operator("{");
  while (!in_.is_operator("}")) {
    dict->add(parse());
    in_.expect_operator(":");
    dict->add(parse());
    if (!in_.is_operator("}")) in_.expect_operator(",");
  }
  in_.expect_operator("}");
  return dict;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr subject) {
  while (true) {
    if (in_.skip_operator(".")) {
      ExpressionPtr node;
      if (in_.is(TokenKind::kInteger)) {
        node = make(Kind::kItem);
        node->add(std::move(subject));
        node->add(parse_primary());
      } else {
        node = make(Kind::kAttribute, in_.expect_name());
        node->add(std::move(subject));
      }
      subject = std::move(node);
    } else if (in_.is_operator("[")) {
      subject = parse_subscript(std::move(subject));
    } else if (in_.is_operator("(")) {
      subject = parse_call(std::move(subject));
    } else {
      return subject;
    }
  }
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr subject) {
  ExpressionPtr node = make(Kind::kItem);
  in_.expect_operator("[");
  node->add(std::move(subject));
  node->add(in_.is_operator(":") ? nullptr : parse());
  if (in_.is_operator(":")) {
    node->kind = Kind::kSlice;
    while (node->items.size() < 4 && in_.skip_operator(":")) {
      node->add(in_.is_operator(":") || in_.is_operator("]") ? nullptr : parse());
    }
    node->items.resize(4);
  }
  in_.expect_operator("]");
  return node;
}

void ExpressionParser::parse_arguments(Expression& call) {
  in_.expect_operator("(");
  while (!in_.is_operator(")")) {
    if (in_.is_operator("**") || call.star != nullptr)
      in_.fail("at most one *list at the end; **dict is not supported");
    if (in_.skip_operator("*")) {
      call.star = parse();
      call.depth = std::max(call.depth, call.star->depth + 1);
      if (!in_.is_operator(")")) in_.expect_operator(",");
      continue;
    }
    const bool named = in_.is(TokenKind::kName) && in_.peek(1).kind == TokenKind::kOperator && in_.peek(1).text == "=";
    if (named) {
      std::string name = in_.next().text;
      in_.next();
      call.named.emplace_back(std::move(name), parse());
    } else {
      if (!call.named.empty()) in_.fail("a named argument after the others");
      call.add(parse());
    }
    if (!in_.is_operator(")")) in_.expect_operator(",");
  }
  in_.expect_operator(")");
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr callee) {
  ExpressionPtr call = make(Kind::kCall);
  call->add(std::move(callee));
  parse_arguments(*call);
  return call;
}

ExpressionPtr ExpressionParser::parse_call_of_macro() {
  ExpressionPtr call = parse_postfix(parse_primary());
  if (call->kind != Kind::kCall) in_.fail("the call of a macro before it");
  return call;
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr subject) {
  while (true) {
    if (in_.skip_operator("|")) {
      subject = parse_filter(std::move(subject));
    } else if (in_.skip_name("is")) {
      subject = parse_test(std::move(subject));
    } else if (in_.is_operator("(")) {
      subject = parse_call(std::move(subject));
    } else {
      return subject;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr subject) {
  ExpressionPtr filter = make(Kind::kFilter, in_.expect_name());
  filter->add(std::move(subject));
  if (in_.is_operator("(")) parse_arguments(*filter);
  return filter;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr subject) {
  const bool negated = in_.skip_name("not");
  ExpressionPtr test = make(Kind::kTest, in_.expect_name());
  test->add(std::move(subject));
  if (in_.is_name("is")) in_.fail("one test, not a chain of them");
  const bool simple = in_.is(TokenKind::kString) || in_.is(TokenKind::kInteger) || in_.is(TokenKind::kFloat) ||
                      in_.is_operator("[") || in_.is_operator("{") ||
                      (in_.is(TokenKind::kName) && !in_.is_name("else") && !in_.is_name("or") && !in_.is_name("and"));
  if (in_.is_operator("(")) {
    parse_arguments(*test);
  } else if (simple) {
    test->add(parse_postfix(parse_primary()));
  }
  if (!negated) return test;
  ExpressionPtr node = make(Kind::kNot);
  node->add(std::move(test));
  return node;
}

}  // namespace oscar::jinja
