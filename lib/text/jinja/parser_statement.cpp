// Text and {% ... %} statements.
#include <algorithm>

#include "text/jinja/parser.h"

namespace oscar::jinja {
namespace {

using Kind = Statement::Kind;

class StatementParser {
 public:
  explicit StatementParser(TokenStream& stream) : in_(stream), expression_(stream) {}

  // Parses statements up to a block that starts with one of `ends` (without reading its name), or to the end of the
  // text.
  Body parse_body(const std::vector<std::string>& ends) {
    const TokenStream::Nesting nesting(in_);
    Body body;
    while (true) {
      if (in_.is(TokenKind::kEnd)) {
        if (!ends.empty()) in_.fail("{% " + ends.front() + " %}");
        return body;
      }
      if (in_.is(TokenKind::kText)) {
        auto text = make(Kind::kText);
        text->name = in_.next().text;
        body.push_back(std::move(text));
      } else if (in_.is(TokenKind::kOutputBegin)) {
        in_.next();
        auto output = make(Kind::kOutput);
        output->value = expression_.parse_tuple(true);
        if (!in_.is(TokenKind::kOutputEnd)) in_.fail("'}}'");
        in_.next();
        body.push_back(std::move(output));
      } else {
        in_.next();  // {%
        if (in_.is(TokenKind::kName) && std::find(ends.begin(), ends.end(), in_.peek().text) != ends.end()) return body;
        body.push_back(parse_block());
      }
    }
  }

 private:
  std::unique_ptr<Statement> make(Kind kind) const {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->line = in_.peek().line;
    return made;
  }
  void end_block() {
    if (!in_.is(TokenKind::kBlockEnd)) in_.fail("'%}'");
    in_.next();
  }
  void end_block(const char* name) {
    if (!in_.skip_name(name)) in_.fail(name);
    end_block();
  }

  std::unique_ptr<Statement> parse_block() {
    const std::string name = in_.is(TokenKind::kName) ? in_.peek().text : "";
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set();
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call_block();
    if (name == "with") return parse_with();
    if (name == "generation") return parse_generation();
    if (name == "break" || name == "continue") {
      auto jump = make(name == "break" ? Kind::kBreak : Kind::kContinue);
      in_.next();
      end_block();
      return jump;
    }
    in_.fail("a supported statement (if, for, set, with, macro, call, raw, break, continue, generation)");
  }

  std::unique_ptr<Statement> parse_if() {
    auto node = make(Kind::kIf);
    while (true) {
      const std::string name = in_.next().text;  // if, elif, else or endif
      if (name == "endif") break;
      const bool has_condition = name != "else";
      ExpressionPtr condition = has_condition ? expression_.parse_tuple(false) : nullptr;
      end_block();
      Body body = has_condition ? parse_body({"endif", "elif", "else"}) : parse_body({"endif"});
      node->branches.emplace_back(std::move(condition), std::move(body));
    }
    end_block();
    return node;
  }

  std::vector<std::string> parse_targets() {
    std::vector<std::string> targets;
    const bool brackets = in_.skip_operator("(");
    do {
      if (!targets.empty() && !in_.is(TokenKind::kName)) break;
      targets.push_back(in_.expect_name());
    } while (in_.skip_operator(","));
    if (brackets) in_.expect_operator(")");
    return targets;
  }

  std::unique_ptr<Statement> parse_for() {
    auto node = make(Kind::kFor);
    in_.next();
    node->targets = parse_targets();
    if (!in_.skip_name("in")) in_.fail("'in'");
    node->value = expression_.parse_tuple(false);
    if (in_.skip_name("if")) node->condition = expression_.parse();
    end_block();
    node->body = parse_body({"endfor", "else"});
    if (in_.skip_name("else")) {
      end_block();
      node->otherwise = parse_body({"endfor"});
    }
    end_block("endfor");
    return node;
  }

  std::unique_ptr<Statement> parse_set() {
    auto node = make(Kind::kSet);
    in_.next();
    if (in_.peek(1).kind == TokenKind::kOperator && in_.peek(1).text == ".") {
      std::string target = in_.expect_name();
      in_.next();
      node->targets.push_back(target + "." + in_.expect_name());
    } else {
      node->targets = parse_targets();
    }
    if (in_.skip_operator("=")) {
      node->value = expression_.parse_tuple(true);
      end_block();
      return node;
    }
    node->kind = Kind::kSetBlock;
    if (node->targets.size() != 1) in_.fail("'='");
    end_block();
    node->body = parse_body({"endset"});
    end_block("endset");
    return node;
  }

  std::unique_ptr<Statement> parse_macro() {
    auto node = make(Kind::kMacro);
    in_.next();
    node->name = in_.expect_name();
    if (!in_.is_operator("(")) in_.fail("'('");
    parse_parameters(*node);
    parse_macro_body(*node, "endmacro");
    return node;
  }

  // {% call(parameters) macro(arguments) %}
  std::unique_ptr<Statement> parse_call_block() {
    auto node = make(Kind::kCallBlock);
    in_.next();
    node->name = "caller";
    if (in_.is_operator("(")) parse_parameters(*node);
    node->value = expression_.parse_call_of_macro();
    parse_macro_body(*node, "endcall");
    return node;
  }

  void parse_parameters(Statement& macro) {
    in_.expect_operator("(");
    while (!in_.is_operator(")")) {
      macro.targets.push_back(in_.expect_name());
      if (in_.skip_operator("=")) {
        macro.defaults.push_back(expression_.parse());
      } else if (!macro.defaults.empty()) {
        in_.fail("a default value, as for the parameters before");
      }
      if (!in_.is_operator(")")) in_.expect_operator(",");
    }
    in_.expect_operator(")");
  }

  // Names in a macro's body that allow arguments beyond its parameters; of these `caller` is supported.
  void parse_macro_body(Statement& macro, const char* end) {
    end_block();
    const std::set<std::string> outside = expression_.take_names();
    macro.body = parse_body({end});
    const std::set<std::string> inside = expression_.take_names();
    if (inside.contains("varargs") || inside.contains("kwargs")) {
      in_.fail("a macro without varargs and kwargs, which are not supported");
    }
    macro.uses_caller = inside.contains("caller");
    expression_.add_names(outside);
    expression_.add_names(inside);
    in_.next();
    if (macro.kind == Kind::kMacro && in_.is_name(macro.name.c_str())) in_.next();
    end_block();
  }

  std::unique_ptr<Statement> parse_with() {
    auto node = make(Kind::kWith);
    in_.next();
    while (!in_.is(TokenKind::kBlockEnd)) {
      if (!node->targets.empty()) in_.expect_operator(",");
      node->targets.push_back(in_.expect_name());
      in_.expect_operator("=");
      node->branches.emplace_back(expression_.parse(), Body());
    }
    end_block();
    node->body = parse_body({"endwith"});
    end_block("endwith");
    return node;
  }

  std::unique_ptr<Statement> parse_generation() {
    auto node = make(Kind::kBlock);
    in_.next();
    end_block();
    node->body = parse_body({"endgeneration"});
    end_block("endgeneration");
    return node;
  }

  TokenStream& in_;
  ExpressionParser expression_;
};

}  // namespace

Body parse(const std::string& source) {
  TokenStream stream(tokenize(source));
  return StatementParser(stream).parse_body({});
}

}  // namespace oscar::jinja
