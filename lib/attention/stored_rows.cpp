#include "attention/stored_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

#include "attention/basis.h"

namespace oscar {

StoredRows compare_stored_rows(const PagedAttention& cache, const KvMethod& method, const KvCacheSpec& spec,
                               const AttentionInput& input, Side side) {
  const StoredPages stored = cache.stored(input.layer, 0, side);
  if (stored.tokens == 0) return {};
  const SideSpec& of = spec.sides[side == Side::kKey ? 0 : 1];
  const SequenceBatch batch{{0}, {input.k.size(0)}, {0}};
  AttentionInput whole = input;
  whole.batch = &batch;
  const at::Tensor rows =
      new_rows(method, whole, side).narrow(0, of.windows.sink, stored.tokens).to(at::kFloat).contiguous();
  const CachePages& pages = *of.pages[static_cast<std::size_t>(input.layer)];
  const std::int64_t each = pages.tokens(), row = rows.size(1) * rows.size(2);
  const auto* values = rows.const_data_ptr<float>();
  std::atomic<std::int64_t> differing{0};
  at::parallel_for(0, (stored.tokens + each - 1) / each, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * each, last = std::min(end * each, stored.tokens);
    differing += pages.differing_rows(stored.pages.data() + begin * pages.bytes(), last - first, values + first * row);
  });
  return {stored.tokens * rows.size(1), differing};
}

}  // namespace oscar
