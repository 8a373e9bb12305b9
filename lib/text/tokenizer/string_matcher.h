// Finds the strings of a set that start at a place in a text. A trie over bytes in one flat hash table: memory is
// linear in the strings, and each scanned byte is one lookup, charged to the budget.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/budget.h"

namespace oscar {

class StringMatcher {
 public:
  // `value` must not be negative. The empty string is ignored; the first of two equal strings counts.
  void add(std::string_view text, std::int32_t value);
  bool empty() const { return values_.size() == 1; }

  struct Hit {
    std::int32_t value;
    std::size_t length;
  };
  // The longest string that starts at text[at].
  std::optional<Hit> match(std::string_view text, std::size_t at) const;
  // Calls found(Hit) for all of them, from shortest to longest.
  template <typename Found>
  void each(std::string_view text, std::size_t at, Found found) const {
    if (!first_[static_cast<unsigned char>(text[at])]) return;
    std::uint32_t node = 0;
    for (std::size_t i = at; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (values_[node] >= 0) found(Hit{values_[node], i + 1 - at});
      Budget::spend(30);
    }
  }

 private:
  std::uint32_t child(std::uint32_t node, unsigned char byte) const;  // 0 for none, because the root is never a child
  void grow();

  std::vector<std::uint64_t> keys_;          // (node, byte) + 1, or 0 if free; the size is a power of two, half empty
  std::vector<std::uint32_t> children_;      // per slot
  std::vector<std::int32_t> values_ = {-1};  // per node
  bool first_[256] = {};
};

}  // namespace oscar
