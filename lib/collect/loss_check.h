// Checks that a model predicts the calibration text as well as a trained model does. This is the last test that the
// checkpoint was read correctly, whatever its files look like.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace oscar {

struct LossCheck {
  std::int64_t tokens = 0;  // number of predicted tokens; 0: too few, or a head that cannot be read in parts
  double loss = 0;          // mean of -log p(next token), nats
  double shuffled = 0;      // mean loss of the same predictions when the next tokens are shuffled, nats
};

constexpr std::int64_t kLossTokens = 256;  // at most
constexpr std::int64_t kLeastLossTokens = 32;

// normed: [T, hidden] after the final norm, for consecutive tokens of one sequence; ids [T]. The head is read from the
// files one part at a time, in FP32, so it needs little memory.
LossCheck check_loss(const Checkpoint& checkpoint, const at::Tensor& normed, const std::vector<std::int32_t>& ids);

// A sentence if the loss is near chance: above 85% of log(vocabulary), or less than 1 nat below the loss of the
// shuffled tokens. Empty otherwise, or if the loss was not measured.
std::string loss_fault(const LossCheck& check, std::int64_t vocabulary);

}  // namespace oscar
