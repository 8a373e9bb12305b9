// Selects the part of a JSON row that is the prompt. Datasets and request logs use many names; if a row has several,
// this order decides (docs/prompts.md has it as a table):
//   the requested column; "input_ids"; "messages"; "conversations" or "conversation"; "text"; "prompt" with its answer;
//   "chosen"; "instruction", "question", "query" or "problem" with its answer; "content";
//   a request in "body", "request" or "params", or of the Responses API as the row.
// A key with value null, NaN or empty counts as absent if another key is present.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/dialects.h"

namespace oscar {

struct PromptRow {
  std::string kind;     // Prompt::kind: text | messages | prompt | input_ids
  std::string reading;  // what was read, for messages: "'prompt' with 'completion'"
  std::string empty;    // the key, if the row has nothing to read and no other information

  std::optional<std::string> text;
  Json ids;                      // array; null if there is a text or a conversation
  Json mask;                     // for ids: an array, or null
  Json others = Json::object();  // "position_ids" and "token_type_ids" beside ids
  Json messages;                 // array of messages; otherwise null
  Api api = Api::kChat;          // whose they are
  std::string effort;            // "disabled" for a request of that API without thinking
  Json extras;  // object with other arguments of apply_chat_template: tools, documents, and further keys

  std::vector<std::string> unread;  // keys with a value that was not read
};

// column: the key to read, or empty. InputError, starting with `where`, for a row with none of these keys, with a value
// of the wrong type, or without the column.
PromptRow read_prompt_row(const Json& row, const std::string& column, const std::string& where);

extern const char* const kPromptKeys;  // list of prompt keys, for messages; a row must have one

}  // namespace oscar
