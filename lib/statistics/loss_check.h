// Whether a model predicts the calibration text as a trained model does: the last test that a checkpoint was read as it
// was meant, whatever its files look like.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace oscar {

struct LossCheck {
  std::int64_t tokens = 0;  // that were predicted; 0: too few, or a head that is not read in parts
  double loss = 0;          // mean of -log p(next token), nats
  double shuffled = 0;      // the same predictions for the same next tokens in another order
};

constexpr std::int64_t kLossTokens = 256;  // at most
constexpr std::int64_t kLeastLossTokens = 32;

// normed: [T, hidden] behind the final norm, of consecutive tokens of one sequence; ids [T]. The head is read from the
// files a part at a time, in FP32, so that it takes no memory to speak of.
LossCheck check_loss(const Checkpoint& checkpoint, const at::Tensor& normed, const std::vector<std::int32_t>& ids);

// A sentence where the loss is near that of chance: above 85% of log(vocabulary), or less than 1 nat below that of the
// shuffled tokens. Empty where it is not, or was not measured.
std::string loss_fault(const LossCheck& check, std::int64_t vocabulary);

}  // namespace oscar
