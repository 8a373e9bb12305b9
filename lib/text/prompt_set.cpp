// Functions on prompts from any file.
#include <cstdint>
#include <iterator>

#include "base/foreign_text.h"
#include "base/hash.h"
#include "text/prompts.h"

namespace oscar {

std::string prompts_sha256(const std::vector<Prompt>& prompts) {
  Sha256 hash;
  const auto number = [&](std::uint64_t value, int bytes) {  // little-endian on every machine
    unsigned char out[8];
    for (int i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
    hash.update(out, static_cast<std::size_t>(bytes));
  };
  for (const Prompt& prompt : prompts) {
    number(prompt.ids.size(), 8);
    for (const std::int32_t id : prompt.ids) number(static_cast<std::uint32_t>(id), 4);
  }
  return hash.hex();
}

std::int64_t token_count(const PromptSet& prompts) {
  std::int64_t count = 0;
  for (const Prompt& prompt : prompts.prompts) count += std::ssize(prompt.ids);
  return count;
}

PromptSet joined(PromptSet first, PromptSet second) {
  PromptSet both = std::move(first);
  std::move(second.prompts.begin(), second.prompts.end(), std::back_inserter(both.prompts));
  std::move(second.skipped.begin(), second.skipped.end(), std::back_inserter(both.skipped));
  for (const auto& [name, reading] : second.readings) {
    RowReading& mine = both.readings[name];
    mine.rows += reading.rows;
    for (const auto& [key, rows] : reading.unread) mine.unread[key] += rows;
  }
  if (both.bad_rows == 0) both.first_bad = std::move(second.first_bad);
  both.bad_rows += second.bad_rows;
  if (both.date.empty()) both.date = std::move(second.date);
  both.sha256 = prompts_sha256(both.prompts);
  return both;
}

ChatTemplate RowSettings::chat_template(const fs::path& model) const {
  ChatTemplate chat = ChatTemplate::from_model(model);
  if (!date.empty()) chat.set_date(date);
  chat.set_rendering(rendering);
  return chat;
}

std::vector<std::string> reading_notes(const PromptSet& prompts) {
  constexpr std::size_t kKeysShown = 12;
  std::vector<std::string> notes;
  bool plain = true;
  for (const auto& [name, reading] : prompts.readings) {
    const bool usual = name == "'text'" || name == "'messages'" || name == "'prompt'" || name == "'input_ids'";
    plain = plain && usual && reading.unread.empty();
    std::string note = std::to_string(reading.rows) + (reading.rows == 1 ? " row: " : " rows: ") + name;
    std::size_t shown = 0;
    for (const auto& [key, rows] : reading.unread) {
      if (++shown > kKeysShown) break;
      note += (shown == 1 ? "; not read: " : ", ") + (key == "..." ? "further keys" : quote_name(key)) + " (" +
              std::to_string(rows) + ")";
    }
    if (shown > kKeysShown) note += " and " + std::to_string(reading.unread.size() - kKeysShown) + " more keys";
    notes.push_back(std::move(note));
  }
  return plain ? std::vector<std::string>{} : notes;
}

}  // namespace oscar
