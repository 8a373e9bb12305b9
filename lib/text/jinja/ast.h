// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace oscar::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using Body = std::vector<std::unique_ptr<Statement>>;

struct Expression {
  enum class Kind {
    kConstant,   // value
    kName,       // name
    kList,       // items
    kTuple,      // items
    kDict,       // items: key, value, key, value, ...
    kAttribute,  // items[0].name
    kItem,       // items[0][items[1]]
    kSlice,      // items[0][items[1]:items[2]:items[3]]; each of the last three may be null
    kCall,       // items[0](items[1], ..., named, *star)
    kFilter,     // items[0]|name(items[1], ..., named)
    kTest,       // items[0] is name(items[1], ...)
    kUnary,      // name is - or +
    kBinary,     // name is one of + - * / // % ** ~
    kCompare,    // items[0] operators[0] items[1] operators[1] items[2] ...
    kAnd,
    kOr,
    kNot,
    kCondition  // items[0] if items[1] else items[2] (may be null)
  };
  Kind kind;
  int line;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> items;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;  // may be null
  std::vector<std::string> operators;
  int depth = 0;  // of the tree below this node

  void add(ExpressionPtr item);  // TemplateError for a tree that is too deep to traverse
};

struct Statement {
  enum class Kind {
    kText,       // name
    kOutput,     // value
    kIf,         // branches; a branch without condition is the else
    kFor,        // targets over value, filtered by condition; body, otherwise
    kSet,        // targets = value; a single target "a.b" sets a namespace member
    kSetBlock,   // targets[0] = rendered body
    kMacro,      // name(targets with defaults): body
    kCallBlock,  // calls the macro `value`, with a `caller` that is (targets with defaults): body
    kWith,       // targets[i] = branches[i].first (with empty bodies) inside the body
    kBlock,      // body unchanged ({% generation %})
    kBreak,
    kContinue
  };
  Kind kind;
  int line;
  std::string name;
  ExpressionPtr value, condition;
  std::vector<std::string> targets;
  std::vector<ExpressionPtr> defaults;  // for a macro's last parameters
  bool uses_caller = false;             // for a macro: its body reads `caller`
  std::vector<std::pair<ExpressionPtr, Body>> branches;
  Body body, otherwise;
};

}  // namespace oscar::jinja
