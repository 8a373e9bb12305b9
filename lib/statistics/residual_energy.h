// Size of the residual stream where the attention output is added: after the attention branch, before the MLP, because
// that is what the next norm divides by. An error in the attention output weighs as much as it is large against it.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/attention.h"
#include "statistics/far_pairs.h"
#include "statistics/statistics.h"

namespace oscar {

class ResidualAccumulator {
 public:
  ResidualAccumulator(const FarPairs& pairs, at::Device device) : pairs_(pairs), device_(device) {}
  void begin_layer(const LayerMoments* partial);                     // partial: null, or sums to go on from
  void add(const SequenceBatch& batch, const at::Tensor& residual);  // [T, hidden]
  void store(LayerMoments& out) const;                               // attention_residual
  void finish(LayerMoments& out) const;                              // the same where it is

 private:
  FarPairs pairs_;
  at::Device device_;
  at::Tensor sums_;        // [2] FP64: |x|^2 of all tokens and of the far ones
  double counts_[2] = {};  // tokens of both
};

}  // namespace oscar
