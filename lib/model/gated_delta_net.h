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
//   o by the gated delta rule (below);
//   W_out (norm(o) silu(W_z x)), with the norm over each head.
// Convolution, rule and gate use FP32; their results are rounded to x's dtype. Sequences of the batch are independent.
// states: the states of attention, or null; then every sequence must start at 0 (std::invalid_argument otherwise).
at::Tensor gated_delta_net(const ModelConfig& config, std::int64_t layer, const LayerWeights& weights,
                           const at::Tensor& x, const SequenceBatch& batch, RecurrentStates* states);

// The gated delta rule (Yang, Kautz, Hatamizadeh 2024, arXiv:2412.06464, equation 10). Each head has a memory S [dk,
// dv] that decays and corrects its value for a key. With row vectors, token t does:
//   S <- exp(g_t) S,   S <- S + k_t^T beta_t (v_t - k_t S),   o_t = q_t S.
// All tensors are FP32. B sequences of T tokens, H heads.
struct DeltaRuleInput {
  at::Tensor q, k;       // [B, H, T, dk]; k has at most length 1, otherwise the memory may grow without bound
  at::Tensor v;          // [B, H, T, dv]
  at::Tensor log_decay;  // [B, H, T] g, at most 0
  at::Tensor beta;       // [B, H, T] step sizes from 0 to 1
};

struct DeltaRuleOutput {
  at::Tensor output;  // [B, H, T, dv]
  at::Tensor memory;  // [B, H, dk, dv] after the last token
};

// memory [B, H, dk, dv]: the memory before the first token. Processes token by token. This is the specification and is
// used for decode steps.
DeltaRuleOutput recurrent_delta_rule(const DeltaRuleInput& input, const at::Tensor& memory);

// The same up to rounding, with matrix products over chunks of 64 tokens (section 3.3 of the same paper). The
// triangular system follows Yang et al. 2024, arXiv:2406.06484. The last chunk may be shorter. Apart from rounding,
// results do not depend on where a sequence is cut.
DeltaRuleOutput chunked_delta_rule(const DeltaRuleInput& input, const at::Tensor& memory);

}  // namespace oscar
