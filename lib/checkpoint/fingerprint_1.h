// The first part of fingerprints of version 1, which bundles and statistics written before version 2 have.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace oscar {

// The geometry of a model as this library reads its config.json: spellings of transformers 4 and 5 give the same.
std::string fingerprint_1_text(const ModelConfig& config);

}  // namespace oscar
