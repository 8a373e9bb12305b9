// Per-token scores from logits, a block of rows at a time so that logits are never held for a whole text.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

#include "report/metrics.h"

namespace oscar {

// One block of rows of the baseline, prepared once and compared with every method.
class BaselineRows {
 public:
  // logits [R, V] FP32; targets [R]: the tokens that follow. `where` names the place in messages ("sequence 3,
  // positions 320 to 575"). Everything in FP64, on the device of the logits. NumericalError when a logit is not finite.
  BaselineRows(const at::Tensor& logits, std::span<const std::int32_t> targets, const std::string& where);

  // Appends R entries to `scores`. KL(baseline || method) in FP64 over all V; equal logits give exactly 0.
  // NumericalError names `method` when one of its logits is not finite.
  void score(const at::Tensor& logits, const std::string& method, SequenceScores& scores) const;

 private:
  std::string where_;
  at::Tensor targets_;           // [R, 1] int64
  at::Tensor logits_, p_;        // [R, V] FP64
  at::Tensor normalizer_, nll_;  // [R] FP64: log sum exp of the logits; -log p of the targets
  at::Tensor top_;               // [R] int64
};

// Rows of a block such that one FP64 copy of its logits takes at most 8 MiB, on a GPU 256.
std::int64_t rows_per_block(std::int64_t vocabulary, at::Device device);

}  // namespace oscar
