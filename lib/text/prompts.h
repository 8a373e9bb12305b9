// Calibration prompts: JSON rows (prompt_row.h selects the part to read) or documents; see prompt_file.h. Beside
// "messages", the keys "tools", "documents" and "add_generation_prompt" have their meaning from apply_chat_template.
// Every other key of the row or of "chat_template_kwargs" is a template variable.
// Nothing is dropped or cut silently. Every row is either used or listed with a reason, and unread keys are counted.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

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
  std::map<std::string, std::int64_t> unread;  // keys with an unread value -> rows; "..." for further ones
};

struct PromptSet {
  std::vector<Prompt> prompts;
  std::vector<SkippedRow> skipped;             // empty rows, and bad rows that were skipped
  std::int64_t bad_rows = 0;                   // number of bad rows among them
  std::string first_bad;                       // file, line and reason of the first bad row
  std::map<std::string, RowReading> readings;  // by PromptRow::reading
  std::string date;                            // the date given to chat templates that ask for it; otherwise empty
  std::string sha256;                          // over all ids, in order; identifies the calibration set
};

struct PromptOptions {
  bool skip_bad_rows = false;  // skip and count malformed rows and rows that the template cannot render
  std::string column;          // the key to read from a row; empty: the order of prompt_row.h
  // Memory kept for all rows, skipped ones included: ids, and a source for each. InputError above it. A token budget
  // needs only a small part of it.
  std::uint64_t most_kept = std::uint64_t{4} << 30;
};

// The same with settings for chat templates: how the rows of a command become tokens.
struct RowSettings {
  PromptOptions options;
  std::string date;  // ChatTemplate::set_date(), or empty
  Rendering rendering = Rendering::kServer;

  ChatTemplate chat_template(const fs::path& model) const;  // for that directory, as in ChatTemplate::from_model()
};

// InputError with file, line and reason for a bad row, for ids outside the vocabulary, or if no row is usable.
// UsageError if a file is given twice. The tokenizer is read at the first row that is not input_ids.
PromptSet load_prompts(const std::vector<fs::path>& files, const LazyTokenizer& tokenizer, const ChatTemplate& chat,
                       std::int64_t vocabulary, const PromptOptions& options = {});

// The same for the rows of one file, given its content and its names in messages and in records.
PromptSet parse_prompt_rows(std::string_view content, const std::string& where, const std::string& name,
                            const LazyTokenizer& tokenizer, const ChatTemplate& chat, std::int64_t vocabulary,
                            const PromptOptions& options = {});

std::int64_t token_count(const PromptSet& prompts);

// PromptSet::sha256 of these prompts: over each prompt's number of ids and its ids, little-endian.
std::string prompts_sha256(const std::vector<Prompt>& prompts);

// The prompts of both, `first` in front, as if one call had read all files.
PromptSet joined(PromptSet first, PromptSet second);

// One document as ids, for oscar-verify --text. The file is a .txt file or has another name, optionally with .gz.
std::vector<std::int32_t> load_text(const fs::path& file, const Tokenizer& tokenizer);

// A file of rows as one text: the concatenated ids of all rows.
struct RowText {
  std::vector<std::int32_t> ids;
  PromptSet rows;
  bool only_ids = true;  // all rows are "input_ids"
};

// Whether a text to score is such a file: by its name, and because it starts with a JSON object (or an array of
// objects).
bool holds_rows(const fs::path& file);
// InputError as in load_prompts().
RowText load_row_text(const fs::path& file, const LazyTokenizer& tokenizer, const ChatTemplate& chat,
                      std::int64_t vocabulary, const PromptOptions& options = {});

// One line for each form of rows that was more than one key, or that had unread keys: "120 rows: 'prompt' with
// 'completion'; not read: 'id' (120)".
std::vector<std::string> reading_notes(const PromptSet& prompts);

}  // namespace oscar
