// Handles unsupported tokenizers in a model directory without tokenizer.json.
#pragma once

#include "base/files.h"

namespace oscar {

// InputError for a missing tokenizer.json. It names the tokenizer.model, *.tiktoken or other file that holds the
// tokenizer in another form, and the command that converts it.
[[noreturn]] void refuse_missing_tokenizer(const fs::path& tokenizer_json);

}  // namespace oscar
