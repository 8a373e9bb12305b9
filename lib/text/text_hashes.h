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

// Detects whether a text was part of the calibration prompts, from the hashes that oscar-collect records.
struct SeenText {
  std::string document;                  // hash of the full text, if the prompts contain it as a document
  std::size_t compared = 0, shared = 0;  // scored passages that a record covers, and those it contains
  std::string text;                      // the text's name, set by the caller
  // True if at least two passages and 1 % of the compared ones are shared. Texts may have a few passages in common
  // (templates, licenses).
  bool seen() const;
  std::string reason()
      const;  // "shares passages with the prompts (12 of 80 that were scored and compared)"; call only if seen()
};

// parts: `parts` of the statistics' metadata, each with prompts.documents and prompts.passages (16 hexadecimal digits
// each; members may be missing). The part with the most shared passages counts. InputError for a hash of another form.
// ids: the whole text; scored: the part whose passages are compared, as the rest affects no figure.
SeenText find_seen_text(const Json& parts, const std::vector<std::int32_t>& ids,
                        const std::vector<std::int32_t>& scored);

}  // namespace oscar
