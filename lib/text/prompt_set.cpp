// What holds for prompts of any file.
#include <cstdint>
#include <iterator>

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

PromptSet joined(PromptSet first, PromptSet second) {
  PromptSet both = std::move(first);
  std::move(second.prompts.begin(), second.prompts.end(), std::back_inserter(both.prompts));
  std::move(second.skipped.begin(), second.skipped.end(), std::back_inserter(both.skipped));
  if (both.bad_rows == 0) both.first_bad = std::move(second.first_bad);
  both.bad_rows += second.bad_rows;
  if (both.date.empty()) both.date = std::move(second.date);
  both.sha256 = prompts_sha256(both.prompts);
  return both;
}

}  // namespace oscar
