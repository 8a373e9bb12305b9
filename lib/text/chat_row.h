// The parts of a row as what renders or runs it: the input of a chat template, and ids.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/prompt_row.h"

namespace oscar {

// Of a row with messages: "tools" and "documents" may be JSON text, and an answer is asked for unless the last message
// is one. InputError, beginning with `where`, for parts of other types.
ChatInput chat_of_row(const PromptRow& row, const std::string& where);

struct IdRow {
  std::vector<std::int32_t> ids;
  std::vector<std::string> not_used;  // keys that would change what is computed with them, and others that are not read
};

// Of a row with ids: those at positions where the attention mask is 1. Positions that only count, and what training
// adds (labels, special_tokens_mask, length), change nothing and are not named. InputError for ids outside the
// vocabulary, and for a mask of another length or with other values than 0 and 1.
IdRow ids_of_row(const PromptRow& row, std::int64_t vocabulary, const std::string& where);

}  // namespace oscar
