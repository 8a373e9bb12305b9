// Tells whether two texts share passages, from a small record of one of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oscar {

inline constexpr std::size_t kPassageTokens = 32;    // a passage: so many tokens in a row, from any place on
inline constexpr std::size_t kPassageHashes = 1024;  // kept of a set of documents: the least of all

// The hashes of the passages of all documents, each once, ascending; at most `most` of them (0: all). A hash is
// mix64 (base/random.h) over the passage's ids in order, h = mix64(h ^ id) from h = 0.
std::vector<std::uint64_t> passage_hashes(const std::vector<std::vector<std::int32_t>>& documents, std::size_t most);

// Of the passages of a text that a record of hashes can judge (those up to its greatest hash, or all where it was not
// cut), how many there are and how many it holds.
struct SharedPassages {
  std::size_t judged = 0, shared = 0;
};
SharedPassages shared_passages(const std::vector<std::uint64_t>& record, const std::vector<std::int32_t>& text);

}  // namespace oscar
