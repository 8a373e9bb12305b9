// Backward pass of causal attention, with the share of far pairs apart: what the exact answer of a model owes to the
// keys and values that a quantised cache will serve.
//   P = softmax(S), S = scale q k^T under the mask (and the soft cap), O = P V, G = dL/dO:
//   dV = P^T G,  dS = P * (G V^T - rowsum(G * O)),  dq = scale dS k,  dk = scale dS^T q.
// Sums over far pairs (sink <= j <= i - recent) alone give dk and dv of keys and values that other queries see exact.
// Weights are computed again in blocks of queries like attention itself; nothing of size [T, T] is held.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/attention.h"
#include "statistics/far_pairs.h"

namespace oscar {

// FP32, q of any float type.
struct AttentionGradient {
  at::Tensor q;             // [T, Hq, d]; undefined unless asked for
  at::Tensor k, v;          // [T, Hkv, d] through all pairs
  at::Tensor far_k, far_v;  // [T, Hkv, d] through far pairs
};

// Whole sequences, input.batch of them: input.q [T, Hq, d], k and v [T, Hkv, d]; output and gradient [T, Hq, d] of any
// float type. queries: those of q, too, a fifth of the work.
AttentionGradient attention_gradient(const AttentionInput& input, const at::Tensor& output, const at::Tensor& gradient,
                                     const FarPairs& pairs, bool queries = true);

}  // namespace oscar
