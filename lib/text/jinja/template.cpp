#include "text/jinja/template.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/budget.h"
#include "text/jinja/builtins.h"
#include "text/jinja/parser.h"
#include "text/unicode/unicode.h"

namespace oscar::jinja {
namespace {

// A step takes about thirty nanoseconds under AddressSanitizer, and the budget should limit seconds.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OSCAR_SLOW_STEPS
#endif
#endif
#if defined(OSCAR_SLOW_STEPS) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kMostSteps = 50'000'000;
#else
constexpr std::uint64_t kMostSteps = 1'000'000'000;
#endif

// A long chat needs thousands of times less. Steps beyond the cost of the values (value.h):
constexpr Budget::Limits kLimits{kMostSteps, std::uint64_t{1} << 30};
constexpr std::uint64_t kStatementSteps = 40, kExpressionSteps = 60, kLoopSteps = 400, kNameSteps = 4;
constexpr int kMaxDepth = 1000;  // nested statements and expressions, including macros

enum class Flow { kNext, kBreak, kContinue };

// The ids of live scopes. Scopes are nested, so the ids are sorted.
struct LiveScopes {
  std::uint64_t next = 1;
  std::vector<std::uint64_t> ids;
  bool contains(std::uint64_t id) const { return std::binary_search(ids.begin(), ids.end(), id); }
};

}  // namespace

// Variables of the template, of one loop iteration, or of one macro call.
struct Scope {
  Scope* outer;
  LiveScopes& live;
  std::uint64_t id;
  Dict variables;

  Scope(Scope* outside, LiveScopes& all, Dict start = {})
      : outer(outside), live(all), id(all.next++), variables(std::move(start)) {
    live.ids.push_back(id);
  }
  explicit Scope(Scope& outside) : Scope(&outside, outside.live) {}
  ~Scope() { live.ids.pop_back(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer) {
      Budget::spend(kNameSteps * (1 + scope->variables.size()));
      for (const auto& [key, value] : scope->variables) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    Budget::spend(kNameSteps * (1 + variables.size()));
    for (auto& [key, old] : variables) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }
};

namespace {

class Renderer {
 public:
  Renderer(const Dict& variables, const std::tm& now) : root_(nullptr, live_, variables), now_(now) {}

  std::string run(const Body& body) {
    std::string out;
    if (execute(body, root_, out) != Flow::kNext) throw TemplateError("break or continue outside a loop");
    return out;
  }

 private:
  using SKind = Statement::Kind;
  using EKind = Expression::Kind;

  static void write(const std::string& text, std::string& out) {
    Budget::spend(text.size() / 4);
    Budget::hold(text.size());
    check_text_size(out.size() + text.size());
    out += text;
  }

  Flow execute(const Body& body, Scope& scope, std::string& out) {
    for (const auto& statement : body) {
      const Flow flow = execute(*statement, scope, out);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  // Tracks the recursion depth, so that macros that call each other cannot exhaust the stack.
  class Level {
   public:
    explicit Level(int& depth) : depth_(depth) {
      if (++depth_ > kMaxDepth) throw TemplateError("it is nested too deeply (do macros call each other without end?)");
    }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  Flow execute(const Statement& s, Scope& scope, std::string& out) {
    const Level level(depth_);
    Budget::spend(kStatementSteps);
    switch (s.kind) {
      case SKind::kText:
        write(s.name, out);
        return Flow::kNext;
      case SKind::kOutput:
        write(evaluate(*s.value, scope).text(), out);
        return Flow::kNext;
      case SKind::kIf:
        for (const auto& [condition, body] : s.branches) {
          if (condition == nullptr || evaluate(*condition, scope).truth()) return execute(body, scope, out);
        }
        return Flow::kNext;
      case SKind::kFor:
        return execute_for(s, scope, out);
      case SKind::kSet:
        execute_set(s, scope);
        return Flow::kNext;
      case SKind::kSetBlock:
        assign(s.targets[0], render_inner(s.body, scope), scope);
        return Flow::kNext;
      case SKind::kBlock:
        write(render_inner(s.body, scope), out);
        return Flow::kNext;
      case SKind::kMacro:
        scope.set(s.name, Macro{&s, &scope, scope.id});
        return Flow::kNext;
      case SKind::kCallBlock:
        write(evaluate_call(*s.value, scope, Macro{&s, &scope, scope.id}).text(), out);
        return Flow::kNext;
      case SKind::kWith: {
        Scope inner(scope);
        for (std::size_t i = 0; i < s.targets.size(); ++i) {
          inner.set(s.targets[i], evaluate(*s.branches[i].first, scope));
        }
        return execute(s.body, inner, out);
      }
      case SKind::kBreak:
        return Flow::kBreak;
      case SKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  std::string render_inner(const Body& body, Scope& scope) {
    Scope inner(scope);
    std::string out;
    if (execute(body, inner, out) != Flow::kNext) throw TemplateError("break or continue outside a loop");
    return out;
  }

  void assign(const std::string& target, Value value, Scope& scope) {
    const std::size_t dot = target.find('.');
    if (dot == std::string::npos) return scope.set(target, std::move(value));
    const Value* object = scope.find(target.substr(0, dot));
    if (object == nullptr || object->as_namespace() == nullptr) {
      throw TemplateError("'" + target + "' is set, but '" + target.substr(0, dot) + "' is not a namespace");
    }
    if (value.as_loop() != nullptr) {
      throw TemplateError("a " + value.type_name() + " inside a namespace is not supported");
    }
    const std::string name = target.substr(dot + 1);
    if (name.starts_with("_")) {
      throw TemplateError("a namespace cannot have the member '" + name + "', which begins with an underscore");
    }
    Dict& members = *object->as_namespace()->members;
    Budget::spend(kNameSteps * members.size());
    for (auto& [key, old] : members) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    members.emplace_back(name, std::move(value));
  }

  void unpack(const std::vector<std::string>& targets, const Value& value, Scope& scope) {
    if (targets.size() == 1) return assign(targets[0], value, scope);
    const List items = iterate(value);
    if (items.size() != targets.size()) {
      throw TemplateError(std::to_string(items.size()) + " values for " + std::to_string(targets.size()) + " names");
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(targets[i], items[i], scope);
  }

  void execute_set(const Statement& s, Scope& scope) { unpack(s.targets, evaluate(*s.value, scope), scope); }

  Flow execute_for(const Statement& s, Scope& scope, std::string& out) {
    const Value sequence = evaluate(*s.value, scope);
    List items = iterate(sequence);
    Budget::spend(kLoopSteps * items.size());
    if (s.condition != nullptr) {
      std::erase_if(items, [&](const Value& item) {
        Scope inner(scope);
        unpack(s.targets, item, inner);
        return !evaluate(*s.condition, inner).truth();
      });
    }
    if (items.empty()) {
      Scope inner(scope);
      return execute(s.otherwise, inner, out);  // a break here leaves the enclosing loop
    }
    const auto members = std::make_shared<Dict>();
    const auto size = static_cast<std::int64_t>(items.size());
    for (std::int64_t i = 0; i < size; ++i) {
      const auto at = [&](std::int64_t k) -> const Value& { return items[static_cast<std::size_t>(k)]; };
      *members = {{"index", i + 1},
                  {"index0", i},
                  {"revindex", size - i},
                  {"revindex0", size - i - 1},
                  {"first", i == 0},
                  {"last", i == size - 1},
                  {"length", size},
                  {"depth", std::int64_t{1}},
                  {"depth0", std::int64_t{0}},
                  {"previtem", i > 0 ? at(i - 1) : Value(Undefined{"previtem"})},
                  {"nextitem", i + 1 < size ? at(i + 1) : Value(Undefined{"nextitem"})}};
      Scope inner(scope);
      inner.set("loop", Loop{members});
      unpack(s.targets, at(i), inner);
      if (execute(s.body, inner, out) != Flow::kBreak) continue;
      // Jinja takes items one by one, so after a break a generator keeps the remaining ones.
      if (sequence.is_generator() && i + 1 < size) {
        throw TemplateError("leaving a loop over a generator early is not supported, put |list after it");
      }
      break;
    }
    return Flow::kNext;
  }

  Value evaluate(const Expression& e, Scope& scope) {
    const Level level(depth_);
    Budget::spend(kExpressionSteps);
    const auto item = [&](std::size_t i) { return evaluate(*e.items[i], scope); };
    switch (e.kind) {
      case EKind::kConstant:
        return e.value;
      case EKind::kName: {
        if (const Value* value = scope.find(e.name)) return *value;
        return is_function(e.name) ? Value(Function{e.name}) : Value(Undefined{e.name});
      }
      case EKind::kList:
      case EKind::kTuple: {
        List items;
        for (std::size_t i = 0; i < e.items.size(); ++i) items.push_back(item(i));
        return Value(std::move(items), e.kind == EKind::kTuple ? Sequence::kTuple : Sequence::kList);
      }
      case EKind::kDict:
        return evaluate_dict(e, scope);
      case EKind::kAttribute:
        return get_attribute(item(0), e.name);
      case EKind::kItem:
        return get_item(item(0), item(1));
      case EKind::kSlice:
        return evaluate_slice(e, scope);
      case EKind::kCall:
        return evaluate_call(e, scope);
      case EKind::kFilter:
        return call_filter(e.name, item(0), arguments(e, "the filter '" + e.name + "'", scope));
      case EKind::kTest: {
        const Value subject = item(0);
        return call_test(e.name, subject, arguments(e, "the test '" + e.name + "'", scope));
      }
      case EKind::kUnary: {
        const Value value = item(0);
        if (!value.is_number()) throw TemplateError("'" + e.name + "' before " + value.type_name());
        if (value.is_float()) return e.name == "+" ? value.number() : -value.number();
        return e.name == "+" ? binary("+", std::int64_t{0}, value) : binary("-", std::int64_t{0}, value);
      }
      case EKind::kBinary: {
        const Value left = item(0);
        return binary(e.name, left, item(1));
      }
      case EKind::kCompare:
        return evaluate_comparison(e, scope);
      case EKind::kAnd: {
        Value left = item(0);
        return left.truth() ? item(1) : left;
      }
      case EKind::kOr: {
        Value left = item(0);
        return left.truth() ? left : item(1);
      }
      case EKind::kNot:
        return !item(0).truth();
      case EKind::kCondition:
        if (item(1).truth()) return item(0);
        return e.items[2] == nullptr ? Value(Undefined{"else"}) : item(2);
    }
    return Value();
  }

  Value evaluate_dict(const Expression& e, Scope& scope) {
    Dict members;
    for (std::size_t i = 0; i + 1 < e.items.size(); i += 2) {
      const Value key = evaluate(*e.items[i], scope);
      if (!key.is_string() && !key.is_int()) {
        throw TemplateError("a dictionary key is " + key.type_name() + ", supported are str and int");
      }
      const Key name = key.is_string() ? Key(key.string()) : Key(key.integer());
      Value value = evaluate(*e.items[i + 1], scope);
      Budget::spend(3 * members.size());
      const auto at = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.first == name; });
      if (at != members.end()) {
        at->second = std::move(value);  // keeps the position of the first one
      } else {
        members.emplace_back(name, std::move(value));
      }
    }
    return members;
  }

  Value evaluate_slice(const Expression& e, Scope& scope) {
    const Value object = evaluate(*e.items[0], scope);
    Value bounds[3];
    for (std::size_t i = 0; i < 3; ++i) {
      if (e.items[i + 1] != nullptr) bounds[i] = evaluate(*e.items[i + 1], scope);
    }
    if (object.is_string()) return slice_text(object.string(), bounds[0], bounds[1], bounds[2]);
    if (!object.is_list() || !object.can_index())
      throw TemplateError("a slice of " + object.type_name() + " is not supported");
    return Value(slice_list(object.list(), bounds[0], bounds[1], bounds[2]), object.sequence());
  }

  Value evaluate_comparison(const Expression& e, Scope& scope) {
    Value left = evaluate(*e.items[0], scope);
    for (std::size_t i = 0; i < e.operators.size(); ++i) {
      const Value right = evaluate(*e.items[i + 1], scope);
      const std::string& op = e.operators[i];
      bool holds = false;
      if (op == "==" || op == "!=") {
        holds = equal(left, right) == (op == "==");
      } else if (op == "in" || op == "not in") {
        holds = contains(right, left) == (op == "in");
      } else {
        const int order = compare(left, right);
        holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
      }
      if (!holds) return false;
      left = right;
    }
    return true;
  }

  // All items except the first (the subject or callee), and the named arguments.
  Arguments arguments(const Expression& e, const std::string& where, Scope& scope) {
    std::vector<Value> positional;
    for (std::size_t i = 1; i < e.items.size(); ++i) positional.push_back(evaluate(*e.items[i], scope));
    Dict named;
    for (const auto& [name, value] : e.named) named.emplace_back(name, evaluate(*value, scope));
    if (e.star != nullptr) {
      for (Value& value : iterate(evaluate(*e.star, scope))) positional.push_back(std::move(value));
    }
    return Arguments(where, std::move(positional), std::move(named));
  }

  Value evaluate_call(const Expression& e, Scope& scope, std::optional<Macro> caller = std::nullopt) {
    const Expression& callee = *e.items[0];
    if (callee.kind == EKind::kAttribute && !caller) {
      const Value object = evaluate(*callee.items[0], scope);
      const Value* member = object.as_namespace() != nullptr ? object.member(callee.name) : nullptr;
      if (member == nullptr) {
        return call_method(object, callee.name, arguments(e, "the method '" + callee.name + "'", scope));
      }
      return call_value(*member, e, callee.name, scope, caller);
    }
    return call_value(evaluate(callee, scope), e, callee.name, scope, caller);
  }

  Value call_value(const Value& function, const Expression& e, const std::string& name, Scope& scope,
                   const std::optional<Macro>& caller) {
    if (const Macro* macro = function.as_macro()) {
      return call_macro(*macro, arguments(e, "the macro '" + macro->definition->name + "'", scope), caller);
    }
    if (caller) throw TemplateError("a call block needs a macro, found " + function.type_name());
    if (const Function* known = function.as_function()) {
      return call_function(known->name, arguments(e, "the function '" + known->name + "'", scope), now_);
    }
    throw TemplateError("'" + (name.empty() ? function.type_name() : name) +
                        "' is called, but is not a supported function");
  }

  Value call_macro(const Macro& called, Arguments arguments, const std::optional<Macro>& caller) {
    const Statement& macro = *called.definition;
    if (!live_.contains(called.scope_id)) {
      throw TemplateError("calling the macro '" + macro.name + "' outside of where it was defined is not supported");
    }
    Scope inner(*called.scope);
    const std::size_t plain = macro.targets.size() - macro.defaults.size();
    for (std::size_t i = 0; i < macro.targets.size(); ++i) {
      std::optional<Value> given = arguments.take_given(macro.targets[i].c_str());
      if (!given) given = i < plain ? Value(Undefined{macro.targets[i]}) : evaluate(*macro.defaults[i - plain], inner);
      inner.set(macro.targets[i], std::move(*given));
    }
    if (macro.uses_caller) {
      // Outside a call block, it is passed by name, as in Jinja.
      std::optional<Value> given = caller ? Value(*caller) : arguments.take_given("caller");
      inner.set("caller", given.value_or(Undefined{"caller"}));
    } else if (caller) {
      throw TemplateError("the macro '" + macro.name + "' is called in a call block and does not use its caller");
    }
    arguments.finish();
    std::string out;
    if (execute(macro.body, inner, out) != Flow::kNext) throw TemplateError("break or continue outside a loop");
    return out;
  }

  LiveScopes live_;
  Scope root_;
  const std::tm now_;
  int depth_ = 0;
};

}  // namespace

Template::Template(const std::string& source) {
  if (find_invalid_utf8(source) != std::string::npos) throw TemplateError("it is not valid UTF-8");
  body_ = parse(source);
  takes_parts_ = loops_over_content(body_);
}

std::string Template::render(const Dict& variables, const std::tm& now) const {
  const Budget budget("rendering it", kLimits);
  const Namespaces namespaces;
  return Renderer(variables, now).run(body_);
}

}  // namespace oscar::jinja
