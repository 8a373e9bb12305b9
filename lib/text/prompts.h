// Calibration prompts: JSON rows (prompt_row.h says which part of them is read), or documents; see prompt_file.h.
// Beside "messages", "tools", "documents" and "add_generation_prompt" mean what they mean to apply_chat_template, and
// every other key of the row, and those of "chat_template_kwargs", is a variable of the template. Nothing is dropped or
// cut silently: every row is either used or listed with its reason, and keys that are not read are counted.
#pragma once

#include <cstdint>
#include <map>
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

// How rows of one form were read.
struct RowReading {
  std::int64_t rows = 0;
  std::map<std::string, std::int64_t> unread;  // keys with a value that was not read -> rows; "..." for further ones
};

struct PromptSet {
  std::vector<Prompt> prompts;
  std::vector<SkippedRow> skipped;             // empty rows, and bad ones where they are skipped
  std::int64_t bad_rows = 0;                   // of those
  std::string first_bad;                       // file, line and reason of the first
  std::map<std::string, RowReading> readings;  // by PromptRow::reading
  std::string date;                            // that a chat template which asks for today's was told; else empty
  std::string sha256;                          // over all ids, in order: the identity of the calibration set
};

struct PromptOptions {
  bool skip_bad_rows = false;  // counts malformed rows and those that the template cannot render, and goes on
  std::string column;          // the key of a row to read; empty: by the order of prompt_row.h
};

// The same with what chat templates are told: how the rows of a command become tokens.
struct RowSettings {
  PromptOptions options;
  std::string date;  // ChatTemplate::set_date(), or empty
  Rendering rendering = Rendering::kServer;

  ChatTemplate chat_template(const fs::path& model) const;  // of that directory; as ChatTemplate::from_model()
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

// A file of rows as one text: the ids of all rows one behind the other.
struct RowText {
  std::vector<std::int32_t> ids;
  PromptSet rows;
  bool only_ids = true;  // all are rows of "input_ids"
};

// Whether a text to score is such a file: by its name, and because it begins with a JSON object (or an array of them).
bool holds_rows(const fs::path& file);
// InputError as load_prompts().
RowText load_row_text(const fs::path& file, const LazyTokenizer& tokenizer, const ChatTemplate& chat,
                      std::int64_t vocabulary, const PromptOptions& options = {});

// A line for each form of rows, where some was not simply one key read, or held keys which were not: "120 rows:
// 'prompt' with 'completion'; not read: 'id' (120)".
std::vector<std::string> reading_notes(const PromptSet& prompts);

}  // namespace oscar
