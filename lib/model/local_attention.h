// Attention of layers whose keys and values stay outside the quantized cache. Queries see only a window, and these
// layers have their own head sizes (LocalAttention in model_config.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/attention.h"
#include "model/recurrent_states.h"

namespace oscar {

// Softmax attention of input.q over the new tokens and the window before them: [T, Hq, d]. `layer` is the layer's
// number in the model. kept: holds the keys and values of the window and receives the new ones; null: sequences must
// start at 0. std::invalid_argument otherwise, without a window, and for soft caps or sinks.
at::Tensor local_attention(const AttentionInput& input, std::int64_t layer, RecurrentStates* kept);

}  // namespace oscar
