#include "text/jinja/template.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

namespace oscar::jinja {
namespace {

using Variables = std::set<std::string>;
using Kind = Expression::Kind;
constexpr int kMostPasses = 16;  // one is enough where a variable is set above its use

struct Visitor {
  std::function<void(const Statement&, const Statement* macro)> statement;
  std::function<void(const Expression&)> expression;

  void visit(const Expression* e) const {
    if (e == nullptr) return;
    if (expression) expression(*e);
    for (const ExpressionPtr& item : e->items) visit(item.get());
    for (const auto& [name, value] : e->named) visit(value.get());
    visit(e->star.get());
  }
  void visit(const Body& body, const Statement* macro = nullptr) const {
    for (const auto& s : body) {
      if (statement) statement(*s, macro);
      const Statement* inside = s->kind == Statement::Kind::kMacro ? s.get() : macro;
      visit(s->value.get());
      visit(s->condition.get());
      for (const ExpressionPtr& value : s->defaults) visit(value.get());
      for (const auto& [condition, branch] : s->branches) {
        visit(condition.get());
        visit(branch, inside);
      }
      visit(s->body, inside);
      visit(s->otherwise, inside);
    }
  }
};

// "ns.rest" for the member of a namespace; a variable's own name; empty for anything else.
std::string variable_of(const Expression& e) {
  if (e.kind == Kind::kName) return e.name;
  if (e.kind == Kind::kAttribute && e.items[0]->kind == Kind::kName) return e.items[0]->name + "." + e.name;
  return "";
}

// The value without its filters, tests and slices.
const Expression& bare(const Expression& e) {
  const bool wraps = e.kind == Kind::kFilter || e.kind == Kind::kTest || e.kind == Kind::kSlice;
  return wraps && !e.items.empty() && e.items[0] != nullptr ? bare(*e.items[0]) : e;
}

bool is_any(const Expression& e, const Variables& variables) { return variables.contains(variable_of(bare(e))); }

bool is_content_of(const Expression& e, const Variables& variables) {
  const Expression& of = bare(e);
  const bool item = of.kind == Kind::kItem && of.items[1]->kind == Kind::kConstant && of.items[1]->value.is_string() &&
                    of.items[1]->value.text() == "content";
  return (item || (of.kind == Kind::kAttribute && of.name == "content")) &&
         variables.contains(variable_of(*of.items[0]));
}

// Variables that hold the messages or a part of their list.
Variables lists_of_messages(const Body& body) {
  Variables lists{"messages"};
  std::size_t before = 0;
  for (int passes = 0; passes < kMostPasses && before != lists.size(); ++passes) {
    before = lists.size();
    Visitor{[&](const Statement& s, const Statement*) {
              if (s.kind != Statement::Kind::kSet || s.targets.size() != 1) return;
              if (is_any(*s.value, lists)) lists.insert(s.targets[0]);
              if (s.value->kind != Kind::kCall || variable_of(*s.value->items[0]) != "namespace") return;
              for (const auto& [name, value] : s.value->named) {
                if (is_any(*value, lists)) lists.insert(s.targets[0] + "." + name);
              }
            },
            {}}
        .visit(body);
  }
  return lists;
}

// Arguments of calls that are the content of a message: the name of the macro, and the argument's name or place.
std::set<std::pair<std::string, std::string>> content_arguments(const Body& body, const Variables& messages) {
  std::set<std::pair<std::string, std::string>> found;
  Visitor{{},
          [&](const Expression& e) {
            if (e.kind != Kind::kCall || e.items[0]->kind != Kind::kName) return;
            for (std::size_t i = 1; i < e.items.size(); ++i) {
              if (is_content_of(*e.items[i], messages)) found.emplace(e.items[0]->name, std::to_string(i - 1));
            }
            for (const auto& [name, value] : e.named) {
              if (is_content_of(*value, messages)) found.emplace(e.items[0]->name, name);
            }
          }}
      .visit(body);
  return found;
}

}  // namespace

bool loops_over_content(const Body& body) {
  const Variables lists = lists_of_messages(body);
  Variables messages;
  Visitor{[&](const Statement& s, const Statement*) {
            if (s.kind == Statement::Kind::kFor && s.targets.size() == 1 && is_any(*s.value, lists)) {
              messages.insert(s.targets[0]);
            }
          },
          {}}
      .visit(body);
  const auto given = content_arguments(body, messages);
  bool found = false;
  Visitor{[&](const Statement& s, const Statement* macro) {
            if (s.kind != Statement::Kind::kFor || s.targets.size() != 1 || found) return;
            found = is_content_of(*s.value, messages);
            if (found || s.value->kind != Kind::kName) return;
            const std::string& name = s.value->name;
            if (macro == nullptr) {
              found = name == "content";
              return;
            }
            const auto& parameters = macro->targets;
            const auto place = std::find(parameters.begin(), parameters.end(), name) - parameters.begin();
            found = static_cast<std::size_t>(place) < parameters.size() &&
                    (given.contains({macro->name, name}) || given.contains({macro->name, std::to_string(place)}));
          },
          {}}
      .visit(body);
  return found;
}

}  // namespace oscar::jinja
