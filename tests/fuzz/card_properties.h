// What every model card is, whatever is in the files that it was made of.
#pragma once

#include <algorithm>
#include <string>

#include "base/foreign_text.h"
#include "fuzz/fuzz_target.h"

namespace oscar::fuzz {

inline void require_card(const std::string& card) {
  require(escape_text(card, Lines::kMany) == card, "a card holds nothing that a terminal obeys");
  require(std::count(card.begin(), card.end(), '\n') <= 80, "a card has at most 80 lines");
  require(card.starts_with("---\n"), "a card begins with its YAML head");
  // Fences stand in pairs: nothing from a file opens or closes one.
  std::size_t fences = 0;
  for (std::size_t at = card.find("\n```"); at != std::string::npos; at = card.find("\n```", at + 1)) ++fences;
  require(fences % 2 == 0, "code blocks of a card are closed");
  require(card.find("<") == std::string::npos, "a card holds no HTML");
}

}  // namespace oscar::fuzz
