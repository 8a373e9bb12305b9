// Mean KL of several versions of the same hidden states to one baseline, for measured curves.
//   KL(p || q) = ln sum p e^(D - m),   D = (h' - h) W^T: the change of the logits,   m = sum p D.
// D comes from the difference of the hidden states, so small divergences keep their digits in FP32 (and BF16), and the
// baseline's softmax is made once for all versions. verify/divergence.h has the slower FP64 form with other scores.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/decoder.h"

namespace oscar {

// The baseline of one sequence.
struct DivergenceBaseline {
  at::Tensor hidden;         // [R, hidden] behind the final norm
  at::Tensor probabilities;  // [R, vocabulary] FP32 of its logits; undefined: made anew by each call

  // Makes `probabilities` when they are not there.
  void keep_probabilities(const Decoder& decoder);
};

// versions: [R, hidden] behind the final norm. Mean over the rows for each version, nats, not negative.
// Logits are held for one block of rows. NumericalError naming `where` when a mean is not finite.
std::vector<double> mean_divergences(const Decoder& decoder, const DivergenceBaseline& baseline,
                                     const std::vector<at::Tensor>& versions, const std::string& where);

}  // namespace oscar
