// A small record of a calibration text, which shows whether another text overlaps with it. Scores on a bundle's own
// calibration text are too good.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

// The first 16 hexadecimal digits of the SHA-256 of a document's token ids (little-endian, 32-bit).
std::string document_hash(const std::vector<std::int32_t>& ids);

inline constexpr std::size_t kPassageTokens = 32;    // a passage is any run of this many tokens
inline constexpr std::size_t kPassageHashes = 1024;  // number kept for a set of documents: the smallest hashes

// The hashes of the passages of all documents, unique and ascending, at most `most` of them (0: all). A hash is mix64
// (base/random.h) over the passage's ids in order: h = mix64(h ^ id), starting from h = 0.
std::vector<std::uint64_t> passage_hashes(const std::vector<std::vector<std::int32_t>>& documents, std::size_t most);

// Counts for the passages of a text that a record covers: up to its largest hash, or all if the record is complete.
// compared: covered passages; shared: the ones that the record contains.
struct SharedPassages {
  std::size_t compared = 0, shared = 0;
};
SharedPassages shared_passages(const std::vector<std::uint64_t>& record, const std::vector<std::int32_t>& text);

// {"documents": [document_hash()...], "passages": [16 hexadecimal digits...]}, with the kPassageHashes smallest hashes.
Json used_text_record(const std::vector<std::vector<std::int32_t>>& documents);

}  // namespace oscar
