// Messages as a server changes them before it renders the chat template: what calibration on one's own traffic must
// see.
#pragma once

#include <string>

#include "base/json.h"

namespace oscar {

// A copy of the messages in which
//   "arguments" of "tool_calls" of an assistant that are JSON text are what the text means; empty ones are {};
//   with `flatten`, a content that is a list of text parts is their texts, one a line.
// InputError for arguments that are no JSON object, which servers refuse.
Json server_messages(const Json& messages, bool flatten);

}  // namespace oscar
