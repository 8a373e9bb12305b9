// Changes a chat as vLLM 0.33 does before it renders the chat template. Calibration on recorded traffic must see the
// same text. `unread` gets the names of what no template sees: images, tools that are no functions, damaged arguments.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

struct ServerOptions {
  bool parts = false, developer = false;  // whether the template takes content as a list, and knows this role
  bool sort_calls = true;                 // members of calls in the order of the request's types
};

// A copy of the messages with these changes:
//   content becomes a list of texts and of marks for images, audio and video if the template takes `parts`; otherwise,
//   and for a tool's answer, the texts become one text, one per line;
//   "arguments" of an assistant's "tool_calls" become objects: JSON text is parsed, anything else becomes {};
//   thoughts in "reasoning" or "reasoning_content" get both names;
//   messages of a developer become system messages if the template does not know the role.
// InputError for a part of another type, which servers refuse.
Json server_messages(const Json& messages, const ServerOptions& options, std::vector<std::string>& unread);

// Moves the text of all system messages to one in front. No change if that is where the only one is.
void merge_system(Json& messages, const std::string& between);

// The functions among the tools, also those of the Responses API, of Anthropic's Messages API and of name spaces, with
// the members and the order of vLLM's request.
Json server_tools(const Json& tools, std::vector<std::string>& unread);

}  // namespace oscar
