// The exact cache for copies of one sequence that differ only from some position on. The rows before it have the same
// keys and values in all copies, so they are in the batch once.
#pragma once

#include <cstdint>

#include "model/attention.h"

namespace oscar {

// The shared rows [0, start) and then the rows [start, tokens) of each copy.
SequenceBatch shared_start_batch(std::int64_t start, std::int64_t tokens, std::int64_t copies);

// Keys and values rounded to BF16, nothing quantized, for a shared_start_batch(). Needs `asked`: the same rows of each
// copy, and none of the shared ones. On the CPU, where fused_prefill_runs(); std::invalid_argument otherwise.
class SharedStartAttention : public Attention {
 public:
  at::Tensor attend(const AttentionInput& input) override;
};

}  // namespace oscar
