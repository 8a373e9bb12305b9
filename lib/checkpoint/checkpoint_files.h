// The files that make up a checkpoint.
#pragma once

#include <vector>

#include "checkpoint/model_location.h"

namespace oscar {

// Configuration, weights, tokenizer and chat template: what a command may read of it. Files that are not there are in
// the list, too. InputError for a damaged index of shards.
std::vector<fs::path> checkpoint_files(const ModelLocation& location);

}  // namespace oscar
