// The bytes of one prompt file: plain, compressed by gzip, or standard input.
#pragma once

#include <string>
#include <vector>

#include "base/files.h"

namespace oscar {

struct PromptFile {
  std::string where;    // for messages: the path, or "stdin"
  std::string name;     // for records: the last component of it
  bool rows = false;    // JSON rows; otherwise one document
  std::string content;  // expanded
};

// .jsonl and .txt, also with .gz behind them, or "-" for rows on standard input (which may be compressed, too).
// InputError: another kind of file, unreadable, damaged, or larger than 4 GiB (1 GiB expanded).
PromptFile read_prompt_file(const fs::path& file);

// A document of any name, expanded when the name ends in .gz.
std::string read_document(const fs::path& file);

// UsageError when two of the paths are the same file, under whatever names.
void require_different_files(const std::vector<fs::path>& files);

}  // namespace oscar
