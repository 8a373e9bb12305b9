// attend_cached() of prefill_core.h with the flash attention of ATen and cuDNN on a GPU, for BF16 models. Scores are
// never in device memory, and products run on tensor cores. Queries, coded rows and softmax weights are rounded to
// BF16, the type in which the GPU's decode kernels take queries; sums are FP32. The tiers of the cache are attended
// separately and combined by their log-sum-exps (Milakov and Gimelshein, arXiv 1805.02867).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attention/prefill_core.h"
#include "model/attention.h"

namespace oscar {

// True if it supports this layer: BF16 input on a GPU, no sliding window, chunks, soft cap or sink logits, and one head
// size of up to 256. Codes must leave the windows one token after another, on both sides at once if both are coded.
bool flash_prefill_runs(const AttentionInput& input, const CachedRows& keys, const CachedRows& values);

// q: [T, Hq, d] FP32 in the basis of the keys; returns [T, Hq, d] FP32 in the basis of the values. `input` provides
// only the scale; its tensors are not read. Equal inputs give equal bits.
at::Tensor attend_flash(const AttentionInput& input, const at::Tensor& q, const CachedRows& keys,
                        const CachedRows& values);

// Attention of queries over a part of their keys: out [T, Hq, d], lse [T, Hq] FP32, the log of the sum of exponentials.
struct AttentionPart {
  at::Tensor out, lse;
};
// Softmax over the keys of all parts together, [T, Hq, d] FP32. parts: at least one, all for the same queries.
at::Tensor merge_parts(const std::vector<AttentionPart>& parts);

}  // namespace oscar
