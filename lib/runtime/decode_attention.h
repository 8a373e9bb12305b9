// Decode attention on the CPU. Both functions compute what kernels/decode_attention.h defines.
#pragma once

#include "kernels/decode_attention.h"
#include "runtime/page_codec.h"

namespace oscar {

// The specification: double accumulation, one token at a time, straight from the bytes of the pages.
void decode_attention_reference(const DecodeAttentionParams& params);

// FP32 over tiles of 64 tokens, all cores; within rounding of the reference. The result does not depend on the number
// of threads. keys and values: readers of params.page.
void decode_attention_cpu(const DecodeAttentionParams& params, const SidePages& keys, const SidePages& values);

}  // namespace oscar
