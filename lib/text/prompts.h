// Calibration prompts: .jsonl rows {"text"}, {"messages"}, {"prompt"}, {"input_ids"}, or .txt files (one document
// each). Nothing is dropped or cut silently: every row is either used or listed with its reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace oscar {

struct Prompt {
  std::string source;  // "prompts.jsonl:12"
  std::string kind;    // text | messages | prompt | input_ids
  std::vector<std::int32_t> ids;
};

struct SkippedRow {
  std::string source, reason;
};

struct PromptSet {
  std::vector<Prompt> prompts;
  std::vector<SkippedRow> skipped;  // empty rows, for one
  std::string sha256;               // over all ids, in order: the identity of the calibration set
};

// InputError with file and line for a malformed row or when no row is usable; ids outside the vocabulary are refused.
PromptSet load_prompts(const std::vector<fs::path>& files, const Tokenizer& tokenizer, const ChatTemplate& chat,
                       std::int64_t vocabulary);

// One document (a .txt file) as ids, for oscar-verify --text.
std::vector<std::int32_t> load_text(const fs::path& file, const Tokenizer& tokenizer);

}  // namespace oscar
