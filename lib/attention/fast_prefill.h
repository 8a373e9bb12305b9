// The fast forms of attend_cached(), on a CPU and on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attention/prefill_core.h"
#include "model/attention.h"

namespace oscar {

// attend_cached() of prefill_core.h in one pass over tiles of keys (cpu/fused_attention.h), on the CPU and for any
// queries of a sequence. It is about 1.4 times as fast as ATen's fused attention there, and it supports coded rows.

// True if it supports this layer: on the CPU, without soft cap and sink logits.
bool fused_prefill_runs(const AttentionInput& input);

// q: [R, Hq, d] FP32 in the basis of the keys: the queries of the requested rows. `asked`: [R] int64 on the CPU,
// ascending positions in the sequence; undefined: R = T, all rows. If keys and values are both coded, they must have
// the same windows. Returns [R, Hq, d of the values] FP32. `input` provides the scale and what each query sees; its
// tensors are not read.
at::Tensor attend_fused(const AttentionInput& input, const at::Tensor& q, const at::Tensor& asked,
                        const CachedRows& keys, const CachedRows& values);

// The same with the sums over plain and coded values side by side, which may differ in width: [R, Hq, d + D] for plain
// values [Hkv, T, d] and coded ones [Hkv, T, D].
at::Tensor attend_fused_apart(const AttentionInput& input, const at::Tensor& q, const at::Tensor& asked,
                              const CachedRows& keys, const CachedRows& values);

// For packed sequences with the keys and values of `input` unchanged, of any dtype: the result of
// FullAttention::attend(), also for only some queries. [A, Hq, d] in q's dtype.
at::Tensor attend_fused_batch(const AttentionInput& input);

// attend_cached() of prefill_core.h with the flash attention of ATen and cuDNN on a GPU, for BF16 models. Scores are
// never in device memory, and products run on tensor cores. Queries, coded rows and softmax weights are rounded to
// BF16, the type in which the GPU's decode kernels take queries; sums are FP32. The tiers of the cache are attended
// separately and combined by their log-sum-exps (Milakov and Gimelshein, arXiv 1805.02867).

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
