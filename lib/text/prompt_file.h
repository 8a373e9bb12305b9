// The bytes of one prompt file: plain, gzip-compressed, or standard input.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace oscar {

struct PromptFile {
  std::string where;  // for messages: the path, or "stdin"
  std::string name;   // for records: the last path component
  enum class Kind {
    kDocument,
    kLines,
    kValues
  } kind = Kind::kDocument;  // one text, or rows: one per line, or JSON values
  std::string content;       // decompressed
};

// Determines the kind from the name: .txt and .md are documents, .jsonl and .ndjson have one JSON row per line. .json
// is an array of rows, or values one after another. Each may end in .gz. InputError for other names, with advice on
// converting a table.
PromptFile::Kind prompt_file_kind(const fs::path& file);

// Reads such a file without its byte order mark, or "-" for lines of standard input (which may also be compressed).
// InputError if the file has another kind, is unreadable, damaged, or larger than 4 GiB. Decompressed: than 1 GiB, or
// than both 64 MiB and 100 times the file.
PromptFile read_prompt_file(const fs::path& file);

// A document with any name, decompressed if the name ends in .gz.
std::string read_document(const fs::path& file);

// UsageError if two of the paths are the same file, even under different names.
void require_different_files(const std::vector<fs::path>& files);

// Decompresses complete gzip files (RFC 1952).

// The content of all members in order. InputError, starting with `where`, for a damaged or truncated file, for bytes
// after the last member, and for content larger than max_bytes.
std::string gunzip(std::string_view bytes, const std::string& where, std::uint64_t max_bytes);

// Whether the bytes start like a gzip file.
bool is_gzip(std::string_view bytes);

}  // namespace oscar
