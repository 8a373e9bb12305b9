// The subset of Jinja 3 that chat templates use, rendered as transformers renders it (trim_blocks, lstrip_blocks,
// break and continue, raise_exception). Anything outside the subset is refused by name, never rendered differently.
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
