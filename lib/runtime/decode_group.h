// The FP32 decode attention of one (sequence, KV head): the work item of decode_attention_cpu.
#pragma once

#include <cstdint>

#include "kernels/decode_attention.h"
#include "runtime/decode_attention.h"
#include "runtime/page_codec.h"

namespace oscar {

void attend_group(const DecodeAttentionParams& params, const SidePages& keys, const SidePages& values,
                  const PositionLogits* positions, std::int64_t batch, std::int64_t kv_head);

}  // namespace oscar
