// Jinja 3 as chat templates use it, rendered like transformers (trim_blocks, lstrip_blocks, break and continue,
// raise_exception). docs/prompts.md lists the supported features. Anything else is refused by name and never rendered
// differently.
#pragma once

#include <ctime>
#include <string>

#include "text/jinja/ast.h"

namespace oscar::jinja {

class Template {
 public:
  explicit Template(const std::string& source);  // TemplateError for a syntax error
  // `now` is the local time for strftime_now. TemplateError if the template fails; BudgetError if it takes too much
  // work or memory.
  std::string render(const Dict& variables, const std::tm& now) const;
  bool takes_parts() const { return takes_parts_; }  // loops_over_content()

 private:
  Body body_;
  bool takes_parts_ = false;
};

// Whether a chat template takes the content of a message as a list of parts. Servers decide by its loops, without
// rendering it.
// As vLLM 0.33 decides: a loop goes over the content of a message of "messages", over a
// parameter of a macro that gets such a content, or, outside of macros, over the variable "content".
bool loops_over_content(const Body& body);

}  // namespace oscar::jinja
