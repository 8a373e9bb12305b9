// What layers without a KV cache keep of a sequence between calls. Its size does not grow with the sequence.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>

namespace oscar {

// Of one gated delta net and one sequence (gated_delta_net.h).
struct RecurrentState {
  at::Tensor inputs;        // [K - 1, C] the last inputs of the short convolution
  at::Tensor memory;        // [Hv, dk, dv] FP32
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
