// Jinja 3 as chat templates use it, rendered as transformers renders it (trim_blocks, lstrip_blocks, break and
// continue, raise_exception). docs/prompts.md lists what there is; anything else is refused by name, never rendered
// differently.
#pragma once

#include <ctime>
#include <string>

#include "text/jinja/ast.h"

namespace oscar::jinja {

class Template {
 public:
  explicit Template(const std::string& source);  // TemplateError for a syntax error
  // `now` is the local time that strftime_now tells. TemplateError when the template fails; BudgetError when it takes
  // too much work or memory.
  std::string render(const Dict& variables, const std::tm& now) const;

 private:
  Body body_;
};

}  // namespace oscar::jinja
