// The state of a sequence between calls, in layers whose cache does not grow.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

namespace oscar {

// State of one layer and one sequence: a gated delta net (gated_delta_net.h) or a window of keys and values
// (local_attention.h).
struct RecurrentState {
  at::Tensor inputs;        // [K - 1, C] last inputs of the short convolution
  at::Tensor memory;        // [Hv, dk, dv] FP32
  at::Tensor keys, values;  // [n, Hkv, d] of the last n < window tokens, all of which the next token sees
  std::int64_t tokens = 0;  // sequence length so far
};

class RecurrentStates {
 public:
  // The state after `start` tokens. A start of 0 gives an empty state and discards any old one. std::invalid_argument
  // if the stored state has seen another number of tokens.
  const RecurrentState& before(std::int64_t layer, std::int64_t sequence, std::int64_t start);
  void keep(std::int64_t layer, std::int64_t sequence, RecurrentState state);
  void release(std::int64_t sequence);  // does nothing for an unknown sequence

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, RecurrentState> states_;  // key: sequence and layer
};

}  // namespace oscar
