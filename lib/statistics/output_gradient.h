// Where backward passes start: gradients at the output of the last layer.
//
// That of the KL metric is J^T z with J = d logits / d state and a random z for which E[z z^T] = diag(p) - p p^T, the
// Fisher matrix of the distribution p in its logits: a small change of anything that logits depend on, with the
// gradient g of the sum of all z . logits to it, costs KL(p || p') = E[(e . g)^2] / 2 (Martens, arXiv 1412.1193,
// section 9). z of different tokens are independent with mean zero, so one pass with a z for every token serves all of
// them. With signs s in {-1, 1}, z = sqrt(p) s - p (sum of sqrt(p) s).
// One-hot vectors of drawn labels less p have the same second moment, but a rounding of p may draw another label:
// metrics of BF16 and FP32 differed by .07 to 2.3 of their norm, and by .01 to .09 with signs (tiny-qwen3).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "model/decoder.h"

namespace oscar {

// The signs of all tokens of a run: pieces of one table, which begin at a place of the token's own.
class ProbeSigns {
 public:
  ProbeSigns(std::uint64_t seed, std::int64_t vocabulary, at::Device device);

  // By (seed, prompt set, sequence, position) alone; docs/format-statistics.md has the formula.
  static std::int64_t place(std::uint64_t seed, std::string_view prompt_set_sha256, std::int64_t sequence,
                            std::int64_t position);
  at::Tensor at_places(const at::Tensor& places) const;  // [n] int64 -> [n, V] FP32, -1 and 1

 private:
  std::int64_t vocabulary_;
  at::Tensor table_;  // [places + V - 1] FP32 on the device
};

// p, signs [n, V] FP32 -> z [n, V].
at::Tensor fisher_probe(const at::Tensor& p, const at::Tensor& signs);

// hidden [n, hidden]: output of the last layer. J^T z of each row, [n, hidden] FP32. Not under InferenceMode.
at::Tensor probe_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& signs);

// labels [n] int64: d log p(label) / d hidden of each row, likewise.
at::Tensor label_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& labels);

}  // namespace oscar
