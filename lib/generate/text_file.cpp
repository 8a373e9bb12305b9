#include "generate/write_text.h"

#include "base/errors.h"

namespace oscar {

void save_text(const fs::path& file, const TextRows& rows, const Tokenizer& tokenizer, const Json& written) {
  AtomicFile out(file);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    Json row = {{"input_ids", rows[r]}, {"decoded", tokenizer.decode(rows[r], false)}};
    if (r == 0) row["written"] = written;
    out.write(row.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n");
  }
  out.commit();
}

std::optional<Json> written_record(const fs::path& file) {
  const std::string text = read_file(file);
  try {
    const Json row = parse_json(std::string_view(text).substr(0, text.find('\n')), file.string());
    const auto found = row.is_object() ? row.find("written") : row.end();
    if (!row.is_object() || found == row.end()) return std::nullopt;
    return *found;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace oscar
