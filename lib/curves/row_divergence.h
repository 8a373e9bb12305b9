// KL of rows of FP32 logits, for mean_divergence.h: both sums over the vocabulary in one function, without intermediate
// tensors. On the CPU, without LibTorch.
#pragma once

#include <cstdint>

namespace oscar {

// p [n]: probabilities of the baseline, up to a factor; change [n]: of the logits. With m = sum p D / sum p,
//   KL = ln(1 + sum p (e^(D - m) - 1) / sum p),
// in nats, not negative; NaN if an input is NaN or infinite.
double row_divergence(const float* p, const float* change, std::int64_t n);

}  // namespace oscar
