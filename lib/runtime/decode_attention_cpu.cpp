#include <ATen/Parallel.h>

#include "runtime/decode_attention.h"
#include "runtime/decode_group.h"

namespace oscar {

void decode_attention_cpu(const DecodeAttentionParams& p, const SidePages& keys, const SidePages& values) {
  at::parallel_for(0, std::int64_t{p.batch} * p.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) attend_group(p, keys, values, i / p.kv_heads, i % p.kv_heads);
  });
}

}  // namespace oscar
