// Decode attention on the CPU: the definition in tiered_decode.h. cpu_backend.cpp distributes the work over threads.
#pragma once

#include <vector>

#include "attention/cpu/tiered_decode.h"
#include "cache/cache_pages.h"
#include "cache/kv_cache.h"

namespace oscar {

// A part of each logit from rows beside the keys: softmax_scale <query, rows[position]>. Keys centered before RoPE need
// it (model/rope_phases.h), and latent attention for its channels with RoPE.
struct PositionLogits {
  const float* query;              // [B, Hq, width]
  std::vector<const float*> rows;  // [B] of [tokens, width]
  int width;
};

// One pass over tiles of 64 tokens with a running softmax, FP32,
// all cores; within rounding of the reference. The result does not depend on the number of threads. keys and values:
// the sides of params.pages; params.page and the deviations are not read. positions: null, or the added part of each
// logit.
void decode_attention_cpu(const TieredDecodeParams& params, const CachePages& keys, const CachePages& values,
                          const PositionLogits* positions = nullptr);

// A sequence whose sides have equal windows and share pages, as one view.
SequenceView joint_view(const SideView& key, const SideView& value);

}  // namespace oscar
