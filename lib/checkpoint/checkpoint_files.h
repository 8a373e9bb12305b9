// The files that make up a checkpoint.
#pragma once

#include <vector>

#include "checkpoint/model_location.h"

namespace oscar {

// Configuration, weights, tokenizer and chat template: the files that a command may read. The list includes missing
// files. InputError for a damaged shard index.
std::vector<fs::path> checkpoint_files(const ModelLocation& location);

}  // namespace oscar
