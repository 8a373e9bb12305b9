// The order in which a cache takes a ragged batch: one token of every sequence at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "model/attention.h"

namespace oscar {

struct StepToken {
  std::int64_t id = 0;        // of the sequence
  std::int64_t row = 0;       // of the batch's tensors
  std::int64_t position = 0;  // in the sequence
};

// Calls step(tokens) for the first token of every sequence, for the second, ...: of those that have one.
template <class F>
void for_each_step(const SequenceBatch& batch, F&& step) {
  std::vector<StepToken> tokens;
  for (std::int64_t i = 0;; ++i) {
    tokens.clear();
    std::int64_t first = 0;
    for (std::size_t s = 0; s < batch.lengths.size(); first += batch.lengths[s++]) {
      if (i < batch.lengths[s]) tokens.push_back({batch.ids[s], first + i, batch.starts[s] + i});
    }
    if (tokens.empty()) return;
    step(tokens);
  }
}

}  // namespace oscar
