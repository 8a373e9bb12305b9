// What layers without a cache that grows keep of a sequence between calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

namespace oscar {

// Of one layer and one sequence: a gated delta net (gated_delta_net.h), or a window of keys and values
// (local_attention.h).
struct RecurrentState {
  at::Tensor inputs;        // [K - 1, C] the last inputs of the short convolution
  at::Tensor memory;        // [Hv, dk, dv] FP32
  at::Tensor keys, values;  // [n, Hkv, d] of the last n tokens, of which the next one sees all: n < window
  std::int64_t tokens = 0;  // of the sequence so far
};

class RecurrentStates {
 public:
  // The state after `start` tokens; at 0 an empty one, whatever was kept. std::invalid_argument where another number of
  // tokens was seen.
  const RecurrentState& before(std::int64_t layer, std::int64_t sequence, std::int64_t start);
  void keep(std::int64_t layer, std::int64_t sequence, RecurrentState state);
  void release(std::int64_t sequence);  // nothing happens for an unknown one

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, RecurrentState> states_;  // by sequence and layer
};

}  // namespace oscar
