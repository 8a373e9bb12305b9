#include "model/recurrent_states.h"

#include <stdexcept>
#include <string>

namespace oscar {

const RecurrentState& RecurrentStates::before(std::int64_t layer, std::int64_t sequence, std::int64_t start) {
  RecurrentState& state = states_[{sequence, layer}];
  if (start == 0) state = RecurrentState{};
  if (state.tokens != start) {
    throw std::invalid_argument("sequence " + std::to_string(sequence) + " starts at token " + std::to_string(start) +
                                ", the state of layer " + std::to_string(layer) + " is that after " +
                                std::to_string(state.tokens));
  }
  return state;
}

void RecurrentStates::keep(std::int64_t layer, std::int64_t sequence, RecurrentState state) {
  states_[{sequence, layer}] = std::move(state);
}

void RecurrentStates::release(std::int64_t sequence) {
  const auto first = states_.lower_bound({sequence, 0});
  auto last = first;
  while (last != states_.end() && last->first.first == sequence) ++last;
  states_.erase(first, last);
}

}  // namespace oscar
