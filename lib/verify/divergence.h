// Per-token scores from logits, one block of rows at a time, so that the logits of an entire text are never in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

#include "report/metrics.h"

namespace oscar {

// One block of baseline rows, prepared once and compared with every method.
class BaselineRows {
 public:
  // logits [R, V] FP32; targets [R]: the next tokens. `where` names the place in messages ("sequence 3, positions 320
  // to 575"). Computes in FP64 on the device of the logits. NumericalError if a logit is not finite.
  BaselineRows(const at::Tensor& logits, std::span<const std::int32_t> targets, const std::string& where);

  // Appends R entries to `scores`. KL(baseline || method) is in FP64 over all V; equal logits give exactly 0.
  // NumericalError naming `method` if one of its logits is not finite.
  void score(const at::Tensor& logits, const std::string& method, SequenceScores& scores) const;

 private:
  std::string where_;
  at::Tensor targets_;           // [R, 1] int64
  at::Tensor logits_, p_;        // [R, V] FP64
  at::Tensor normalizer_, nll_;  // [R] FP64: log sum exp of the logits; -log p of the targets
  at::Tensor top_;               // [R] int64
};

// Rows per block, so that one FP64 copy of its logits takes at most 8 MiB, or 256 MiB on a GPU, but 64 rows at least.
std::int64_t rows_per_block(std::int64_t vocabulary, at::Device device);

}  // namespace oscar
