// --check-against: predictions that another stack wrote, against those of this reader of the same checkpoint.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "base/files.h"
#include "checkpoint/checkpoint.h"

namespace oscar {

// {"ids": [...], "top": [...]}: tokens of one text, and behind each of them the token that the other stack finds most
// likely; "logits" [ids][vocabulary] may take the place of "top". InputError for a file of another form, or where they
// do not agree: a top token of the other stack whose logit is more than 0.5 below the highest one here.
// The line that says how well they agree.
std::string check_against(const fs::path& file, const Checkpoint& checkpoint, at::ScalarType dtype, at::Device device);

}  // namespace oscar
