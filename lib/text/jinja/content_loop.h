// Whether a chat template takes the content of a message as a list of parts. Servers decide by its loops, without
// rendering it.
#pragma once

#include "text/jinja/ast.h"

namespace oscar::jinja {

// As vLLM 0.33 decides: a loop goes over the content of a message of "messages", over a
// parameter of a macro that gets such a content, or, outside of macros, over the variable "content".
bool loops_over_content(const Body& body);

}  // namespace oscar::jinja
