// The bytes of one prompt file: plain, compressed by gzip, or standard input.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace oscar {

struct PromptFile {
  std::string where;  // for messages: the path, or "stdin"
  std::string name;   // for records: the last component of it
  enum class Kind {
    kDocument,
    kLines,
    kValues
  } kind = Kind::kDocument;  // one text, or rows: one a line, or JSON values
  std::string content;       // expanded
};

// By the name: .txt and .md are documents, .jsonl and .ndjson have a JSON row a line, .json is an array of them or
// values one after another; all of them also with .gz behind. InputError for another name, with how to convert a table.
PromptFile::Kind prompt_file_kind(const fs::path& file);

// Such a file without a byte order mark, or "-" for lines of standard input (which may be compressed, too).
// InputError: another kind of file, unreadable, damaged, or larger than 4 GiB (1 GiB expanded).
PromptFile read_prompt_file(const fs::path& file);

// A document of any name, expanded when the name ends in .gz.
std::string read_document(const fs::path& file);

// UsageError when two of the paths are the same file, under whatever names.
void require_different_files(const std::vector<fs::path>& files);

}  // namespace oscar
