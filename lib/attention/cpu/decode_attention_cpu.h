// Decode attention on the CPU. Every function computes what tiered_decode.h defines. The reference is in
// decode_attention_reference.cpp; cpu_backend.cpp shares the work of the others among threads.
#pragma once

#include <vector>

#include "attention/cpu/tiered_decode.h"
#include "cache/cache_pages.h"
#include "cache/kv_cache.h"

namespace oscar {

// The specification: double accumulation, one token at a time, straight from the bytes of the pages (page_layout.h).
void decode_attention_reference(const TieredDecodeParams& params);

// A part of each logit that depends on the position of the key: softmax_scale <query, rope_phases[position]>. Keys
// centered before RoPE have it (model/rope_phases.h).
struct PositionLogits {
  const float* query;        // [B, Hq, d]
  const float* rope_phases;  // [tokens, d]
};

// Keys and values that leave their windows together: one pass over tiles of 64 tokens with a running softmax, FP32, all
// cores; within rounding of the reference. The result does not depend on the number of threads. keys and values: of
// params.pages; of params.page and the deviations nothing is read. positions: null, or what each logit gains.
void decode_attention_cpu(const TieredDecodeParams& params, const CachePages& keys, const CachePages& values,
                          const PositionLogits* positions = nullptr);

// Keys and values with windows and pages of their own: all logits, then the softmax, then the values. Of params,
// sequences, pages and page are not read; keys, values: [B].
void decode_attention_two_pass(const TieredDecodeParams& params, const std::vector<SideView>& keys,
                               const std::vector<SideView>& values, const PositionLogits* positions = nullptr);

// A sequence whose sides have the same windows and the same pages, as one view.
SequenceView joint_view(const SideView& key, const SideView& value);

}  // namespace oscar
