#include "base/columns.h"

#include <algorithm>

#include "base/foreign_text.h"
#include "base/utf8.h"

namespace oscar {
namespace {

std::size_t table_width(const std::vector<TableRow>& rows) {
  const std::string text = table_text(rows, rows.front().size());
  std::size_t most = 0;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t to = text.find('\n', from);
    most = std::max(most, display_width(std::string_view(text).substr(from, to - from)));
    from = to + 1;
  }
  return most;
}

}  // namespace

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

std::string wrapped(std::string_view sentence, std::size_t indent) {
  const std::string text = escape_text(sentence);
  std::string out, line;
  bool fresh = true;  // whether the line has no word yet
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t to = std::min(text.find(' ', from), text.size());
    const std::string_view word = std::string_view(text).substr(from, to - from);
    if (!fresh && display_width(line) + 1 + display_width(word) > kColumns) {
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
      line.assign(indent, ' ');
      fresh = true;
    }
    if (from > 0 && (!fresh || out.empty())) line += ' ';
    line += word;
    fresh = fresh && word.empty();
    from = to + 1;
  }
  return out + line + "\n";
}

std::string shortened(const std::string& text, std::size_t most) {
  if (display_width(text) <= most) return text;
  std::vector<std::size_t> starts;  // of the characters
  for (std::size_t at = 0; at < text.size(); at += utf8_step(text, at).bytes) starts.push_back(at);
  const std::size_t kept = most - 3, head = kept / 2;
  return text.substr(0, starts[head]) + "..." + text.substr(starts[starts.size() - (kept - head)]);
}

std::string table_text(const std::vector<TableRow>& rows, std::size_t names) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const TableRow& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  std::string text;
  for (const TableRow& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string pad(widths[c] - display_width(row[c]), ' ');
      if (c > 0) line += "  ";
      line += c < names ? row[c] + pad : pad + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string table_in_parts(const std::vector<TableRow>& rows, std::size_t names) {
  std::string text;
  for (std::size_t from = names; from < rows.front().size();) {
    std::vector<TableRow> part;
    for (const TableRow& row : rows) part.emplace_back(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(names));
    std::size_t to = from;
    for (; to < rows.front().size(); ++to) {
      for (std::size_t r = 0; r < rows.size(); ++r) part[r].push_back(rows[r][to]);
      if (to == from || table_width(part) <= kColumns) continue;
      for (TableRow& row : part) row.pop_back();
      break;
    }
    text += (text.empty() ? "" : "\n") + table_text(part, names);
    from = to;
  }
  return text;
}

}  // namespace oscar
