// Size of the residual stream where the attention output is added: after the attention branch, before the MLP, because
// that is what the next norm divides by. An error in the attention output weighs as much as it is large against it.
//
// Where the branch passes a norm of its own before it is added (Gemma 2 and 3, GLM-4, OLMo 2), the norm divides the
// error by the root of the branch's mean square, too: of an error e in the branch y, |gain e|^2 / ((mean y^2) |x|^2) of
// the stream's energy is disturbed. Branches differ by many powers of ten between layers, so this decides which of them
// matter.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/attention.h"
#include "statistics/far_pairs.h"
#include "statistics/statistics.h"

namespace oscar {

class ResidualAccumulator {
 public:
  ResidualAccumulator(const FarPairs& pairs, at::Device device) : pairs_(pairs), device_(device) {}
  void begin_layer(const LayerMoments* partial);  // partial: null, or sums to go on from
  // [T, hidden] both; branch: before its norm, undefined where there is none.
  void add(const SequenceBatch& batch, const at::Tensor& residual, const at::Tensor& branch);
  void store(LayerMoments& out) const;   // attention_residual, and attention_gain where there is a norm
  void finish(LayerMoments& out) const;  // the same where it is

 private:
  // Sums of a number of each token, of all tokens and of the far ones.
  struct Sums {
    at::Tensor sums;            // [2] FP64; undefined: there are none
    double counts[2] = {};      // tokens of both
    at::Tensor stored() const;  // [2, 2]
  };
  Sums begin(const at::Tensor& partial, bool needed) const;
  void add(Sums& to, const SequenceBatch& batch, const at::Tensor& values) const;

  FarPairs pairs_;
  at::Device device_;
  Sums energy_, gain_;
};

}  // namespace oscar
