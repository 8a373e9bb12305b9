// A layer of linear attention, the gated delta net of Qwen3-Next and Qwen3.5 (Yang, Kautz, Hatamizadeh 2024,
// arXiv:2412.06464): it holds a memory of fixed size and the last inputs of a short convolution instead of a KV cache.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/attention.h"
#include "model/decoder.h"
#include "model/recurrent_states.h"

namespace oscar {

// x [T, hidden], normed -> [T, hidden]:
//   q, k, v = silu(conv(qkv x)), causal, each channel with its own last K inputs; q, k of each head to length 1, q
//   times dk^-1/2; beta = sigmoid(W_beta x), g = -exp(log_rate) softplus(W_decay x + bias); o by the gated delta rule
//   (gated_delta_rule.h); W_out (norm(o) silu(W_z x)), the norm over each head.
// Convolution, rule and gate are in FP32, their results rounded to x's dtype. Sequences of the batch do not see each
// other. states: those of attention, or null, and then every sequence starts at 0 (std::invalid_argument otherwise).
at::Tensor gated_delta_net(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
                           const at::Tensor& x, const SequenceBatch& batch, RecurrentStates* states);

}  // namespace oscar
