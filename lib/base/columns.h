// Text of at most 100 columns: what a terminal shows without breaking lines itself.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

constexpr std::size_t kColumns = 100;

// Number of characters of a UTF-8 text: bytes that start one.
std::size_t display_width(std::string_view text);

// A sentence, escaped (foreign_text.h) and broken at spaces into lines of at most kColumns, each with a newline;
// `indent` spaces begin every line but the first. A longer word has a line of its own.
std::string wrapped(std::string_view sentence, std::size_t indent = 6);

// The beginning and the end of a longer text, with "..." between them. `most` is at least 8.
std::string shortened(const std::string& text, std::size_t most);

using TableRow = std::vector<std::string>;

// The rows (equally long, the first one the header) in aligned columns. The first `names` columns are left-aligned,
// the others right-aligned. Not limited to kColumns.
std::string table_text(const std::vector<TableRow>& rows, std::size_t names);

// table_text() within kColumns: the columns that do not fit follow in further tables, which repeat the names.
std::string table_in_parts(const std::vector<TableRow>& rows, std::size_t names);

}  // namespace oscar
