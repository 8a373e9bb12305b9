// Converts conversations in the various dataset formats to the list of messages that chat templates take.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"

namespace oscar {

// Returns [{"role": ..., "content": ...}, ...]. Accepts:
//   such a list, one such message, or either as JSON text, also message by message;
//   turns {"from": "human", "value": ...} (ShareGPT), with speakers mapped to chat-template roles;
//   items of the Responses API (dialects.h);
//   pairs {"input": ..., "output": ...}.
// nullopt if the value is none of these: a text, numbers, objects without a speaker. InputError, starting with `where`,
// for a list that is only partly of this form, or for an unknown speaker.
std::optional<Json> as_conversation(const Json& value, const std::string& where);

// The same for a value that must be a conversation; `key` names it in messages. Returns an empty list unchanged.
Json need_conversation(const Json& value, const std::string& key, const std::string& where);

}  // namespace oscar
