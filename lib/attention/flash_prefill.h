// attend_cached() of prefill_core.h by the flash attention of ATen and cuDNN on a GPU, for models in BF16: scores are
// never in device memory, and products run on tensor cores. Queries, coded rows and softmax weights are rounded to
// BF16, as the decode kernels of a GPU take queries; sums are FP32. The tiers of the cache are attended to apart and
// added up by their log-sum-exps (Milakov and Gimelshein, arXiv 1805.02867).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attention/prefill_core.h"
#include "model/attention.h"

namespace oscar {

// Whether it computes this layer: input in BF16 on a GPU, without sliding window, chunks, soft cap and sink logits;
// one head size of up to 256; codes that leave the windows one token after another, on both sides at
// once where both are coded.
bool flash_prefill_runs(const AttentionInput& input, const CachedRows& keys, const CachedRows& values);

// q: [T, Hq, d] FP32 in the basis of the keys; returns [T, Hq, d] FP32 in that of the values. The scale is that of
// `input`, of whose tensors none is read. Equal inputs give equal bits.
at::Tensor attend_flash(const AttentionInput& input, const at::Tensor& q, const CachedRows& keys,
                        const CachedRows& values);

// Part of what a query attends to: out [T, Hq, d], lse [T, Hq] FP32, the log of the sum of its exponentials.
struct AttentionPart {
  at::Tensor out, lse;
};
// Softmax over the keys of all parts together, [T, Hq, d] FP32. parts: at least one, each of the same queries.
at::Tensor merge_parts(const std::vector<AttentionPart>& parts);

}  // namespace oscar
