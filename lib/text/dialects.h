// Reads conversations of other interfaces as messages of OpenAI's Chat Completions, as the endpoints of vLLM 0.33 do:
// Anthropic's Messages API, where calls, results and thoughts are blocks of a message's content, and OpenAI's Responses
// API, where they are items beside the messages. What no message can say stays under its own name, so that it is
// counted as not read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

enum class Api { kChat, kMessages, kResponses };

// Whether a message has blocks that only the Messages API knows.
bool has_blocks(const Json& messages);

// The messages, with blocks as "tool_calls", "reasoning" and tool messages. InputError, starting with `where`, for a
// block that servers refuse.
Json messages_of_blocks(const Json& messages, const std::string& where);

// Whether messages of a request have blocks that change its tools.
bool changes_tools(const Json& body);

// Whether a request's tools have the form of the Messages API.
bool has_schemas(const Json& body);

// "system" of a request: a text, or blocks of text.
std::string system_text(const Json& system);

// Whether an entry of a list is an item of the Responses API that is no message.
bool is_response_item(const Json& entry);

// Adds an entry of such a list to the messages. Calls, thoughts and texts join the assistant message before them.
void add_response_item(const Json& entry, Json& messages, const std::string& where);

// A client's request to a server as a row of prompts.
struct ApiRequest {
  std::string part;    // "messages", "prompt" or "input"
  Json row;            // that part, as "messages" or "prompt", and other members that reach the chat template
  std::string system;  // the text of a system message in front of all others
  std::string effort;  // "disabled" if it switches thinking off
  Api api = Api::kChat;
  std::vector<std::string> unread;  // members that would change the prompt
};

// InputError, starting with `where`, for a value that is no request.
ApiRequest read_request(const Json& body, const std::string& where);

// Converts conversations in the various dataset formats to the list of messages that chat templates take.

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
