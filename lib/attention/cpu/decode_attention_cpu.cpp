#include <ATen/Parallel.h>

#include <algorithm>

#include "attention/cpu/decode_attention_cpu.h"
#include "attention/cpu/decode_group.h"

namespace oscar {

void decode_attention_cpu(const TieredDecodeParams& p, const CachePages& keys, const CachePages& values,
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

void decode_attention_two_pass(const TieredDecodeParams& p, const std::vector<SideView>& keys,
                               const std::vector<SideView>& values, const PositionLogits* positions) {
  at::parallel_for(0, std::int64_t{p.batch} * p.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto b = static_cast<std::size_t>(i / p.kv_heads);
      attend_sides(p, keys[b], values[b], positions, i / p.kv_heads, i % p.kv_heads);
    }
  });
}

SequenceView joint_view(const SideView& key, const SideView& value) {
  const auto number = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  const auto tier = [&](const RowTier& k, const RowTier& v) {
    return WindowTier{k.rows, v.rows, number(k.tokens), number(k.first), number(k.capacity)};
  };
  return {tier(key.sink, value.sink), tier(key.recent, value.recent), number(key.body), key.table};
}

}  // namespace oscar
