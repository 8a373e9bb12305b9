#include "text/unicode/unicode_tables.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

namespace oscar {

extern const std::string_view code_points_txt;

namespace {

std::vector<std::vector<CodeRange>> read_tables() {
  std::vector<std::vector<CodeRange>> tables;
  std::istringstream words{std::string(code_points_txt)};
  for (std::string word; words >> word;) {
    if (word.ends_with(':')) {
      tables.emplace_back();
      continue;
    }
    char* at = word.data();
    const auto number = [&](char* digits) { return static_cast<char32_t>(std::strtoul(digits, &at, 16)); };
    const char32_t first = number(at);
    CodeRange row{first, first, 0};
    if (*at == '-') row.last = number(at + 1);
    if (*at == '>') row.value = number(at + 1);
    tables.back().push_back(row);
  }
  return tables;
}

}  // namespace

const std::vector<CodeRange>& code_ranges(CodeTable table) {
  static const auto tables = read_tables();
  return tables[static_cast<std::size_t>(table)];
}

const CodeRange* find_row(CodeTable table, char32_t c) {
  const std::vector<CodeRange>& rows = code_ranges(table);
  const auto it = std::ranges::upper_bound(rows, c, {}, &CodeRange::first);
  return it == rows.begin() || c > (it - 1)->last ? nullptr : &*(it - 1);
}

}  // namespace oscar
