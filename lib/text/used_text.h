// A small record of a calibration text, so that later runs can detect overlap with another text. Scores on a bundle's
// own calibration text are too good.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"

namespace oscar {

// {"documents": [document_hash()...], "passages": [16 hexadecimal digits...]}, with the kPassageHashes smallest hashes.
Json used_text_record(const std::vector<std::vector<std::int32_t>>& documents);

}  // namespace oscar
