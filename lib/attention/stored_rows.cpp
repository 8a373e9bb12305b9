#include "attention/stored_rows.h"

#include <ATen/ATen.h>

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
  return {stored.tokens * rows.size(1),
          pages.differing_rows(stored.pages.data(), stored.tokens, rows.const_data_ptr<float>())};
}

}  // namespace oscar
