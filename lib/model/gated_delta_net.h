// A linear-attention layer: the gated delta net of Qwen3-Next and Qwen3.5 (Yang, Kautz, Hatamizadeh 2024,
// arXiv:2412.06464). Instead of a KV cache it keeps a fixed-size memory and the last inputs of a short convolution.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/attention.h"
#include "model/decoder.h"
#include "model/recurrent_states.h"

namespace oscar {

// x [T, hidden], normed -> [T, hidden]:
//   q, k, v = silu(conv(qkv x)), a causal convolution per channel over the last K inputs;
//   q, k of each head are scaled to length 1, then q by dk^-1/2;
//   beta = sigmoid(W_beta x), g = -exp(log_rate) softplus(W_decay x + bias);
//   o by the gated delta rule (gated_delta_rule.h);
//   W_out (norm(o) silu(W_z x)), with the norm over each head.
// Convolution, rule and gate use FP32; their results are rounded to x's dtype. Sequences of the batch are independent.
// states: the states of attention, or null; then every sequence must start at 0 (std::invalid_argument otherwise).
at::Tensor gated_delta_net(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
                           const at::Tensor& x, const SequenceBatch& batch, RecurrentStates* states);

}  // namespace oscar
