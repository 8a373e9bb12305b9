// Converts the parts of a row to the input of a chat template or to token ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/prompt_row.h"

namespace oscar {

// For a row with messages. "tools" and "documents" may be JSON text. A generation prompt is added unless the last
// message is an answer. InputError, starting with `where`, for parts of other types.
ChatInput chat_of_row(const PromptRow& row, const std::string& where);

// Names of what the rendered text of these messages does not hold: keys of messages that no template mentions, and
// whole messages whose text it leaves out.
std::vector<std::string> unwritten(const Json& messages, const ChatTemplate& chat, const std::string& rendered);

struct IdRow {
  std::vector<std::int32_t> ids;
  std::vector<std::string> not_used;  // keys that would change the computation, and other unread keys
};

// For a row with ids: keeps the ids at positions where the attention mask is 1. Positions that only count up, and
// fields added for training (labels, special_tokens_mask, length), change nothing and are not listed. InputError for
// ids outside the vocabulary, and for a mask with the wrong length or with values other than 0 and 1.
IdRow ids_of_row(const PromptRow& row, std::int64_t vocabulary, const std::string& where);

}  // namespace oscar
