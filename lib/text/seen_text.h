// Whether a text was in the prompts of a calibration, from the hashes that oscar-collect records.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

struct SeenText {
  std::string document;                  // hash of the whole text, where the prompts hold it as a document; else empty
  std::size_t compared = 0, shared = 0;  // passages of the text that a record can judge, and that it holds
  // Passages that every text may share (templates, licenses) do not count: at least two, and 1 % of those compared.
  bool seen() const;
  std::string reason() const;  // "shares passages with the prompts (12 of 80 that were compared)"; seen() only
};

// parts: `parts` of the metadata of statistics, each with prompts.documents and prompts.passages (16 hexadecimal digits
// each; members may be missing). The part that shares most counts. InputError for a hash of another form.
SeenText find_seen_text(const Json& parts, const std::vector<std::int32_t>& ids);

}  // namespace oscar
