#include <ATen/Parallel.h>

#include <algorithm>

#include "runtime/decode_attention.h"
#include "runtime/decode_group.h"

namespace oscar {

void decode_attention_cpu(const DecodeAttentionParams& p, const SidePages& keys, const SidePages& values,
                          const PositionLogits* positions) {
  // Threads are worth waking for some 2^18 cached elements each.
  std::int64_t tokens = 0;
  for (std::int32_t b = 0; b < p.batch; ++b) {
    tokens += p.sequences[b].sink.tokens + p.sequences[b].body_tokens + p.sequences[b].recent.tokens;
  }
  const std::int64_t item = std::max<std::int64_t>(tokens * p.head_dim / std::max(p.batch, 1), 1);
  const std::int64_t grain = std::max<std::int64_t>((std::int64_t{1} << 18) / item, 1);
  at::parallel_for(0, std::int64_t{p.batch} * p.kv_heads, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) attend_group(p, keys, values, positions, i / p.kv_heads, i % p.kv_heads);
  });
}

}  // namespace oscar
