// Size of the residual stream where the attention output is added: after the attention branch, before the MLP, because
// the next norm divides by it. The weight of an error in the attention output is its size relative to this stream.
//
// If the branch has its own norm before the addition (Gemma 2 and 3, GLM-4, OLMo 2), that norm also divides the error
// by the root of the branch's mean square. An error e in the branch y then disturbs the share |gain e|^2 / ((mean y^2)
// |x|^2) of the stream's energy. Branches differ by many powers of ten between layers, so this decides which layers
// matter.
#pragma once

#include <ATen/core/Tensor.h>

#include "collect/far_pairs.h"
#include "model/attention.h"
#include "statistics/statistics.h"

namespace oscar {

class ResidualAccumulator {
 public:
  ResidualAccumulator(const FarPairs& pairs, at::Device device) : pairs_(pairs), device_(device) {}
  void begin_layer();
  // Both [T, hidden]; branch: before its norm, undefined if it has none.
  void add(const SequenceBatch& batch, const at::Tensor& residual, const at::Tensor& branch);
  void finish(LayerMoments& out) const;  // attention_residual, and attention_gain if there is a norm, on their device

 private:
  // Sums of one number per token: over all tokens, and over the tokens in position sink + recent or later.
  struct Sums {
    at::Tensor sums;            // [2] FP64; undefined: there are none
    double counts[2] = {};      // tokens of both sums
    at::Tensor stored() const;  // [2, 2]
  };
  Sums zeros() const;
  void add(Sums& to, const SequenceBatch& batch, const at::Tensor& values) const;

  FarPairs pairs_;
  at::Device device_;
  Sums energy_, gain_;
};

}  // namespace oscar
