#include "text/prompts.h"

#include <algorithm>

#include "base/errors.h"
#include "base/interrupt.h"
#include "base/json_rules.h"
#include "base/log.h"
#include "text/chat_row.h"
#include "text/jinja/value.h"
#include "text/prompt_file.h"
#include "text/prompt_row.h"
#include "text/row_json.h"
#include "text/unicode/unicode.h"

namespace oscar {
namespace {

constexpr std::size_t kMostKeys = 64;    // unread keys that are counted by name
constexpr std::uint64_t kEachRow = 480;  // bytes that a row takes beside its ids

// Warns if a document by its name begins with a JSON row: then the JSON itself is read.
void warn_of_rows(std::string_view content, const std::string& where) {
  const std::size_t begin = content.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || content[begin] != '{') return;
  try {
    read_prompt_row(parse_python_json(content.substr(begin, content.find('\n', begin) - begin), where), "", where);
  } catch (const InputError&) {
    return;
  }
  log_warning(where +
              ": begins with a JSON row, but is one document by its name, so the JSON itself is read; name it "
              ".jsonl to read the texts of its rows");
}

struct TooManyRows : InputError {  // no single row is bad
  using InputError::InputError;
};

class Loader {
 public:
  Loader(const LazyTokenizer& tokenizer, const ChatTemplate& chat, std::int64_t vocabulary,
         const PromptOptions& options)
      : tokenizer_(tokenizer), chat_(chat), vocabulary_(vocabulary), options_(options) {}

  void load(const fs::path& path) {
    const PromptFile file = read_prompt_file(path);
    if (file.kind == PromptFile::Kind::kDocument) return load_document(file);
    if (file.kind == PromptFile::Kind::kLines) return load_rows(file.content, file.where, file.name);
    std::size_t number = 0;
    for (const std::string_view row : split_json_values(file.content, file.where)) {
      const std::string suffix = ":" + std::to_string(++number);
      load_line(row, file.where + suffix, file.name + suffix);
    }
  }

  void load_rows(std::string_view content, const std::string& where, const std::string& name) {
    std::size_t line = 0;
    for (std::size_t begin = 0; begin < content.size();) {
      if (interrupt_requested()) throw InterruptedError("interrupted while prompts were read; run the command again");
      const std::size_t end = std::min(content.find('\n', begin), content.size());
      const std::string_view row = content.substr(begin, end - begin);
      begin = end + 1;
      ++line;
      const std::string suffix = ":" + std::to_string(line);
      load_line(row, where + suffix, name + suffix);
    }
  }

  // `files` names the input.
  PromptSet finish(const std::string& files) {
    if (set_.prompts.empty()) {
      std::string detail = "there are no rows";
      if (!set_.skipped.empty()) {
        const SkippedRow& first = set_.skipped[0];
        detail = std::to_string(set_.skipped.size()) + " rows were skipped, the first, " + first.source +
                 ", for: " + first.reason + (set_.bad_rows > 0 ? "; the first bad one: " + set_.first_bad : "");
      }
      throw InputError("no usable prompt in " + files + " (" + detail + "); pass at least one row with " +
                       std::string(kPromptKeys));
    }
    set_.sha256 = prompts_sha256(set_.prompts);
    return std::move(set_);
  }

 private:
  void load_document(const PromptFile& file) {
    const std::size_t bad = find_invalid_utf8(file.content);
    if (bad != std::string::npos) {
      throw InputError(file.where + ": is not valid UTF-8 at byte " + std::to_string(bad) +
                       "; convert the file to UTF-8");
    }
    if (file.content.empty()) return skip(file.name, "empty file");
    warn_of_rows(file.content, file.where);
    where_ = file.where;
    add(file.name, "text", tokenizer_.get().encode(file.content, true));
  }

  void load_line(std::string_view row, const std::string& where, const std::string& source) {
    where_ = where;
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) return skip(source, "blank line");
    try {
      huge_integer_ = jinja::has_huge_integer(row);
      load_row(parse_python_json(row, where_), source);
    } catch (const TooManyRows&) {
      throw;
    } catch (const InputError& e) {
      const std::string message = e.what();  // starts with the place for every thrower
      std::string placed = message.starts_with(where_ + ":") ? message : where_ + ": " + message;
      if (row[row.find_first_not_of(" \t\r")] == '[') placed += "; a file with one array of rows is named .json";
      if (!options_.skip_bad_rows) throw InputError(placed);
      if (set_.bad_rows++ == 0) set_.first_bad = placed;
      skip(source, "bad row");
    }
  }

  void load_row(const Json& json, const std::string& source) {
    const PromptRow row = read_prompt_row(json, options_.column, where_);
    if (!row.empty.empty()) return skip(source, "empty '" + row.empty + "'");
    if (row.kind == "input_ids") {
      IdRow ids = ids_of_row(row, vocabulary_, where_);
      count(row, ids.not_used);
      return add(source, row.kind, std::move(ids.ids));
    }
    if (row.text) {
      count(row, row.unread);
      return add(source, row.kind, tokenizer_.get().encode(*row.text, true));
    }
    if (huge_integer_) {
      throw InputError(where_ + ": the row holds a whole number of more than 64 bits, which is not supported");
    }
    const ChatInput input = chat_of_row(row, where_);
    if (chat_.asks_for_date()) set_.date = chat_.date();
    std::vector<std::string> unread = row.unread;
    for (const auto& [key, value] : row.extras.items()) {
      const bool argument = key == "add_generation_prompt" || key == "chat_template_kwargs" ||
                            (key == "reasoning_effort" && chat_.names("enable_thinking"));
      if (says(row.extras, key) && !argument && !chat_.names(key)) unread.push_back(key);
    }
    const std::string text = chat_.render(input, &unread);
    for (std::string& name : unwritten(input.messages, chat_, text)) unread.push_back(std::move(name));
    std::sort(unread.begin(), unread.end());
    unread.erase(std::unique(unread.begin(), unread.end()), unread.end());
    count(row, unread);
    add(source, row.kind, tokenizer_.get().encode(text, false));  // the template already wrote BOS
  }

  void count(const PromptRow& row, const std::vector<std::string>& unread) {
    RowReading& reading = set_.readings[row.reading];
    ++reading.rows;
    for (const std::string& key : unread) {
      const bool known = reading.unread.contains(key) || reading.unread.size() < kMostKeys;
      ++reading.unread[known ? key : "..."];
    }
  }

  void add(const std::string& source, const std::string& kind, std::vector<std::int32_t> ids) {
    if (ids.empty()) return skip(source, "no tokens");
    const std::int32_t highest = *std::max_element(ids.begin(), ids.end());
    if (highest >= vocabulary_) {
      throw InputError(where_ + ": the tokenizer gives the id " + std::to_string(highest) +
                       ", outside the model's vocabulary of " + std::to_string(vocabulary_) +
                       "; the tokenizer belongs to another model");
    }
    keep(ids.size() * sizeof(std::int32_t));
    set_.prompts.push_back({source, kind, std::move(ids)});
  }
  void skip(const std::string& source, const std::string& reason) {
    keep(0);
    set_.skipped.push_back({source, reason});
  }
  void keep(std::uint64_t bytes) {
    kept_ += kEachRow + bytes;
    if (kept_ <= options_.most_kept) return;
    throw TooManyRows(where_ + ": the prompts up to here take more than " + format_bytes(options_.most_kept) +
                      "; pass a part of them (head -n 100000)");
  }

  const LazyTokenizer& tokenizer_;
  const ChatTemplate& chat_;
  const std::int64_t vocabulary_;
  const PromptOptions options_;
  std::string where_;          // file and line of the current row
  bool huge_integer_ = false;  // in the current row
  std::uint64_t kept_ = 0;     // bytes of prompts and skipped rows
  PromptSet set_;
};

}  // namespace

PromptSet load_prompts(const std::vector<fs::path>& files, const LazyTokenizer& tokenizer, const ChatTemplate& chat,
                       std::int64_t vocabulary, const PromptOptions& options) {
  require_different_files(files);
  Loader loader(tokenizer, chat, vocabulary, options);
  for (const fs::path& file : files) loader.load(file);
  const std::string first = files.empty() ? "an empty list of files" : files[0] == "-" ? "stdin" : files[0].string();
  return loader.finish(first + (files.size() > 1 ? " and " + std::to_string(files.size() - 1) + " more files" : ""));
}

PromptSet parse_prompt_rows(std::string_view content, const std::string& where, const std::string& name,
                            const LazyTokenizer& tokenizer, const ChatTemplate& chat, std::int64_t vocabulary,
                            const PromptOptions& options) {
  Loader loader(tokenizer, chat, vocabulary, options);
  loader.load_rows(content, where, name);
  return loader.finish(where);
}

namespace {

bool is_row_file(const fs::path& file) {
  try {
    return prompt_file_kind(file) != PromptFile::Kind::kDocument;
  } catch (const InputError&) {
    return false;  // a text with another name
  }
}

// Whether the file starts with a JSON object or an array of objects. Otherwise it is a document, independent of its
// name.
bool begins_with_row(const PromptFile& file) {
  std::size_t begin = file.content.find_first_not_of(" \t\r\n");
  if (begin != std::string::npos && file.kind == PromptFile::Kind::kValues && file.content[begin] == '[') {
    begin = file.content.find_first_not_of(" \t\r\n", begin + 1);
  }
  return begin != std::string::npos && file.content[begin] == '{';
}

}  // namespace

bool holds_rows(const fs::path& file) { return is_row_file(file) && begins_with_row(read_prompt_file(file)); }

RowText load_row_text(const fs::path& file, const LazyTokenizer& tokenizer, const ChatTemplate& chat,
                      std::int64_t vocabulary, const PromptOptions& options) {
  RowText text;
  text.rows = load_prompts({file}, tokenizer, chat, vocabulary, options);
  for (const Prompt& row : text.rows.prompts) {
    text.ids.insert(text.ids.end(), row.ids.begin(), row.ids.end());
    text.only_ids = text.only_ids && row.kind == "input_ids";
  }
  return text;
}

std::vector<std::int32_t> load_text(const fs::path& file, const Tokenizer& tokenizer) {
  const std::string text = read_document(file);
  const std::size_t bad = find_invalid_utf8(text);
  if (bad != std::string::npos) {
    throw InputError(file.string() + ": is not valid UTF-8 at byte " + std::to_string(bad) +
                     "; convert the file to UTF-8");
  }
  warn_of_rows(text, file.string());
  std::vector<std::int32_t> ids = tokenizer.encode(text, true);
  if (ids.empty()) throw InputError(file.string() + ": holds no text");
  return ids;
}

}  // namespace oscar
