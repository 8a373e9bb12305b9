// Rows that a model wrote, as a prompt file: JSON rows {"input_ids", "decoded"}, which oscar-collect reads and people
// can inspect. The first row also records under "written" how the text was made.
#pragma once

#include <optional>

#include "base/files.h"
#include "base/json.h"
#include "generate/write_text.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

void save_text(const fs::path& file, const TextRows& rows, const Tokenizer& tokenizer, const Json& written);

// The record in the first row; nullopt if it has none. InputError: unreadable.
std::optional<Json> written_record(const fs::path& file);

}  // namespace oscar
