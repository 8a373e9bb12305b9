// Changes messages as a server does before it renders the chat template. Calibration on recorded traffic must see the
// same text.
#pragma once

#include <string>

#include "base/json.h"

namespace oscar {

// A copy of the messages with these changes:
//   "arguments" of an assistant's "tool_calls" that are JSON text are parsed; empty ones become {};
//   an assistant's content that is null or missing, as beside tool calls, becomes empty text;
//   with `flatten`, content that is a list of text parts becomes their texts, one per line.
// InputError for arguments that are not a JSON object, which servers refuse.
Json server_messages(const Json& messages, bool flatten);

}  // namespace oscar
