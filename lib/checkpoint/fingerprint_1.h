// The first part of version 1 fingerprints, which older bundles and statistics contain.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace oscar {

// The geometry of a model as parsed from config.json. The spellings of transformers 4 and 5 give the same text.
std::string fingerprint_1_text(const ModelConfig& config);

}  // namespace oscar
