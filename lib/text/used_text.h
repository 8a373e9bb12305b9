// A small record of the text that something was fitted to, so that later runs can tell whether another text shares it:
// what is scored on its own calibration text looks better than it is.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"

namespace oscar {

// {"documents": [document_hash()...], "passages": [16 hexadecimal digits...]}: the least kPassageHashes hashes.
Json used_text_record(const std::vector<std::vector<std::int32_t>>& documents);

}  // namespace oscar
