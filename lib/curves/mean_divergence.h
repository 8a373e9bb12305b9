// Mean KL of several versions of the same hidden states to one baseline, for measured curves.
//   KL(p || q) = ln sum p e^(D - m),   D = (h' - h) W^T: the change of the logits,   m = sum p D.
// D comes from the difference of the hidden states, so small divergences keep their digits in FP32 (and BF16). The
// baseline's softmax is computed once for all versions. verify/divergence.h has the slower FP64 form with other scores.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/decoder.h"

namespace oscar {

inline constexpr std::int64_t kLeastLogitRows = 128;  // of a block of logits, however large the vocabulary is

// The baseline of one sequence.
struct DivergenceBaseline {
  at::Tensor hidden;         // [R, hidden] after the final norm
  at::Tensor probabilities;  // [R, vocabulary] FP32 of its logits; undefined: each call computes them

  // Computes `probabilities` if they are undefined.
  void keep_probabilities(const Decoder& decoder);
};

// versions: [R, hidden] after the final norm. Returns the mean over the rows for each version, nats, not negative.
// Logits are held for one block of rows. NumericalError naming `where` if a mean is not finite.
std::vector<double> mean_divergences(const Decoder& decoder, const DivergenceBaseline& baseline,
                                     const std::vector<at::Tensor>& versions, const std::string& where);

// The parts of it, which sampled_logits.h shares.

// The change of capped logits c tanh(x / c), [...] FP32, from `change`, the capped difference c tanh(dx / c) that
// Decoder::logits() gives for a difference of hidden states; `base`, asked for with a cap only, gives the capped
// logits.
//   c (t' - t) = c u (1 - t^2) / (1 + t u),   t = tanh(x / c), u = tanh(dx / c).
at::Tensor capped_change(double cap, at::Tensor change, const std::function<at::Tensor()>& base);

// p, change: [R, V] FP32. Sum over the rows of KL = ln sum p e^(D - m), FP64. Overwrites `change` on a GPU.
at::Tensor summed_divergence(const at::Tensor& p, at::Tensor change);

// Sums over `rows` as means, which waits for a GPU. NumericalError naming `where`.
std::vector<double> means_of(const std::vector<at::Tensor>& sums, std::int64_t rows, const std::string& where);

}  // namespace oscar
