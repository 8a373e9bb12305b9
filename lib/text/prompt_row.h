// Which part of a JSON row is the prompt. Datasets and request logs name it in many ways; where a row holds several,
// this order decides (docs/prompts.md has it as a table):
//   the column that was asked for; "input_ids"; "messages"; "conversations" or "conversation"; "text"; "prompt" with
//   its answer; "chosen"; "instruction", "question", "query" or "problem" with its answer; "content"; a request in
//   "body" or "request".
// A key whose value is null, NaN or empty counts as absent where another one is there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

struct PromptRow {
  std::string kind;     // of Prompt: text | messages | prompt | input_ids
  std::string reading;  // what was read, for people: "'prompt' with 'completion'"
  std::string empty;    // the key, where the row holds nothing to read and no more than this is known of it

  std::optional<std::string> text;
  Json ids;                      // array; null where there is a text or a conversation
  Json mask;                     // of ids: an array, or null
  Json others = Json::object();  // "position_ids" and "token_type_ids" beside ids
  Json messages;                 // array of messages; null likewise
  Json extras;  // object of what apply_chat_template takes beside messages: tools, documents, and further keys

  std::vector<std::string> unread;  // keys with a value that nothing above holds
};

// column: the key to read, or empty. InputError, beginning with `where`, for a row that has none of these keys, whose
// value is of another type, or that has no such column.
PromptRow read_prompt_row(const Json& row, const std::string& column, const std::string& where);

extern const char* const kPromptKeys;  // those that a row must have one of, for messages

}  // namespace oscar
