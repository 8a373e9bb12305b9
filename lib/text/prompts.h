// Calibration prompts: .jsonl rows {"text"}, {"messages"}, {"prompt"}, {"input_ids"}, or .txt files (one document
// each); see prompt_file.h. Beside "messages", "tools", "documents" and "add_generation_prompt" mean what they mean to
// apply_chat_template, and every other key of the row, and those of "chat_template_kwargs", is a variable of the
// template. Nothing is dropped or cut silently: every row is either used or listed with its reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "text/chat_template.h"
#include "text/tokenizer/lazy_tokenizer.h"

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
  std::vector<SkippedRow> skipped;  // empty rows, and bad ones where they are skipped
  std::int64_t bad_rows = 0;        // of those
  std::string first_bad;            // file, line and reason of the first
  std::string date;                 // that a chat template which asks for today's was told; else empty
  std::string sha256;               // over all ids, in order: the identity of the calibration set
};

struct PromptOptions {
  bool skip_bad_rows = false;  // counts malformed rows and those that the template cannot render, and goes on
};

// InputError with file, line and reason for a bad row, or when no row is usable; ids outside the vocabulary are
// refused. UsageError when one file is given twice. The tokenizer is read when a row that is no input_ids is met.
PromptSet load_prompts(const std::vector<fs::path>& files, const LazyTokenizer& tokenizer, const ChatTemplate& chat,
                       std::int64_t vocabulary, const PromptOptions& options = {});

// The same for the rows of one file: its content, its name in messages and its name in records.
PromptSet parse_prompt_rows(std::string_view content, const std::string& where, const std::string& name,
                            const LazyTokenizer& tokenizer, const ChatTemplate& chat, std::int64_t vocabulary,
                            const PromptOptions& options = {});

// PromptSet::sha256 of these: over the number of ids of each and its ids, little-endian.
std::string prompts_sha256(const std::vector<Prompt>& prompts);

// The prompts of both, those of `first` in front, as if their files had been read by one call.
PromptSet joined(PromptSet first, PromptSet second);

// One document (a .txt file, or one of another name, also with .gz behind it) as ids, for oscar-verify --text.
std::vector<std::int32_t> load_text(const fs::path& file, const Tokenizer& tokenizer);

// The ids of all rows one behind the other, where the file is a .jsonl (also with .gz behind it) whose first row has
// "input_ids"; nullopt for another file. InputError for a row of another kind in it, and as load_prompts().
std::optional<std::vector<std::int32_t>> load_id_rows(const fs::path& file, std::int64_t vocabulary);

}  // namespace oscar
