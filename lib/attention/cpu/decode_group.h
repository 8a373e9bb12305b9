// The FP32 decode attention of one (sequence, KV head): the work items of cpu_backend.cpp.
#pragma once

#include <cstdint>

#include "attention/cpu/decode_attention_cpu.h"

namespace oscar {

// One pass over keys and values, tile by tile.
void attend_group(const TieredDecodeParams& params, const CachePages& keys, const CachePages& values,
                  const PositionLogits* positions, std::int64_t batch, std::int64_t kv_head);

}  // namespace oscar
