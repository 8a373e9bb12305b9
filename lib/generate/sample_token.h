// Samples a next token at temperature 1.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace oscar {

// The token that `unit`, uniform in [0, 1), draws from softmax(logits) over the first `vocabulary` entries: the first
// token at which the cumulative probability exceeds `unit`. Weights and sums are FP64, in token order, so the result
// depends only on the arguments. NumericalError for logits that are NaN or +infinity.
std::int32_t sample_token(const float* logits, std::int64_t vocabulary, double unit);

// The same for each row of logits [rows, >= vocabulary] FP32, contiguous; rows in parallel, on a GPU in runs.
std::vector<std::int32_t> sample_tokens(const at::Tensor& logits, std::int64_t vocabulary,
                                        const std::vector<double>& units);

// The same on the device of the logits. It adds up the cumulative probability in runs of 1,024 tokens and copies only
// the chosen run to the CPU. Copying all logits of a large vocabulary takes longer than computing a layer. The result
// differs only for units within rounding of a boundary.
std::vector<std::int32_t> sample_in_runs(const at::Tensor& logits, std::int64_t vocabulary,
                                         const std::vector<double>& units);

}  // namespace oscar
