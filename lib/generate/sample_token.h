// Sampling of a next token at temperature 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oscar {

// The token that `unit`, uniform in [0, 1), draws from softmax(logits) of the first `vocabulary` entries: the first one
// at which the cumulative probability exceeds it. Weights and sums in FP64, in the order of the tokens, so that the
// result depends on nothing but its arguments. NumericalError for logits that are NaN or +infinity.
std::int32_t sample_token(const float* logits, std::int64_t vocabulary, double unit);

// The same for each row of logits [rows, >= vocabulary] FP32, contiguous; rows in parallel, on a GPU in runs.
std::vector<std::int32_t> sample_tokens(const at::Tensor& logits, std::int64_t vocabulary,
                                        const std::vector<double>& units);

// The same on the device of the logits, with the cumulative probability added up in runs of 1,024 tokens, of which one
// comes to the CPU: the logits of a large vocabulary take longer to copy than a layer to compute. Other tokens only for
// units within rounding of a boundary.
std::vector<std::int32_t> sample_in_runs(const at::Tensor& logits, std::int64_t vocabulary,
                                         const std::vector<double>& units);

}  // namespace oscar
