// Conversations however datasets spell them, as the list of messages that chat templates take.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"

namespace oscar {

// [{"role": ..., "content": ...}, ...] of
//   such a list, one such message, or either as JSON text, also message by message;
//   turns {"from": "human", "value": ...} (ShareGPT), whose speakers get the roles of chat templates;
//   pairs {"input": ..., "output": ...}.
// nullopt where the value is none of these at all: a text, numbers, objects without a speaker. InputError, beginning
// with `where`, for a list of which only a part is, or a speaker that is not known.
std::optional<Json> as_conversation(const Json& value, const std::string& where);

// The same for a value that must be one; `key` names it in messages. An empty list is given back as it is.
Json need_conversation(const Json& value, const std::string& key, const std::string& where);

}  // namespace oscar
