// Detects whether a text was part of the calibration prompts, from the hashes that oscar-collect records.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

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
