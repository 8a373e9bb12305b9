// Tokenizers that are not read: what to do about a model directory that has no tokenizer.json but one of them.
#pragma once

#include "base/files.h"

namespace oscar {

// InputError for a tokenizer.json that is missing: it names the tokenizer.model, *.tiktoken or other file beside it
// that holds the tokenizer in another form, and the command that converts it.
[[noreturn]] void refuse_missing_tokenizer(const fs::path& tokenizer_json);

}  // namespace oscar
