// --check-against: compares another stack's predictions with this reader's predictions for the same checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "base/files.h"
#include "checkpoint/checkpoint.h"

namespace oscar {

// The file is {"ids": [...], "top": [...]}: tokens of one text, and after each of them the other stack's most likely
// token. "logits" [ids][vocabulary] may replace "top". InputError for a file of another form, or if the two disagree: a
// top token of the other stack has a logit more than 0.5 below the highest one here.
// Returns a line that says how well they agree.
std::string check_against(const fs::path& file, const Checkpoint& checkpoint, at::ScalarType dtype, at::Device device);

}  // namespace oscar
