// attention_gradient() by the flash attention of ATen on a GPU, for models in BF16: scores are never in device memory
// and products run on tensor cores. Softmax weights and slopes are rounded to BF16 inside, sums are FP32, gradients of
// keys and values come out in BF16.
//
// The backward pass of flash attention is given the log-sum-exps and outputs of all pairs. So it may be run over some
// of the pairs alone and gives their share exactly. Those with j > i - recent are a sliding window; the others are
// those of the keys without their last `recent` ones, causal with the last query seeing the last key that is left.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/attention.h"
#include "statistics/attention_gradient.h"

namespace oscar {

// Whether it computes this layer: input in BF16 on a GPU, without chunks, soft cap and sink logits; one head size of up
// to 256, a multiple of 8; near pairs in every row.
bool flash_gradient_runs(const AttentionInput& input, const FarPairs& pairs);

struct FlashOutput {
  at::Tensor out, lse;  // [T, Hq, d]; log-sum-exps, [Hq, T] FP32
};
FlashOutput flash_output(const AttentionInput& input);

// As attention_gradient(), of the output found here.
AttentionGradient flash_gradient(const AttentionInput& input, const FlashOutput& output, const at::Tensor& gradient,
                                 const FarPairs& pairs, bool queries = true);

}  // namespace oscar
