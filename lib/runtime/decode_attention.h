// Decode attention on the CPU. Both functions compute what kernels/decode_attention.h defines.
#pragma once

#include "kernels/decode_attention.h"
#include "runtime/page_codec.h"

namespace oscar {

// The specification: double accumulation, one token at a time, straight from the bytes of the pages.
void decode_attention_reference(const DecodeAttentionParams& params);

// A part of each logit that depends on the position of the key: softmax_scale <query, phases[position]>. Keys centred
// before RoPE have it (model/phase_table.h).
struct PositionLogits {
  const float* query;   // [B, Hq, d]
  const float* phases;  // [tokens, d]
};

// FP32 over tiles of 64 tokens, all cores; within rounding of the reference. The result does not depend on the number
// of threads. keys and values: readers of params.page.
// positions: null, or what each logit gains.
void decode_attention_cpu(const DecodeAttentionParams& params, const SidePages& keys, const SidePages& values,
                          const PositionLogits* positions = nullptr);

}  // namespace oscar
