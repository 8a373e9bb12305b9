// The prefill path: the rows that the cache would hold of a sequence, and attention over them (prefill_core.h).
#include <ATen/ATen.h>

#include <optional>

#include "attention/basis.h"
#include "attention/begin_step.h"
#include "attention/cached_attention.h"
#include "attention/fast_prefill.h"
#include "attention/prefill_core.h"
#include "base/timeline.h"

namespace oscar {

SimulatedPrefillAttention::SimulatedPrefillAttention(const KvMethod& method, Timeline* timeline)
    : method_(method), timeline_(timeline) {}

at::Tensor SimulatedPrefillAttention::attend(const AttentionInput& input) {
  if (input.asked.defined()) return attend(with_all_queries(input)).index_select(0, input.asked.to(input.q.device()));
  const SequenceBatch& batch = *input.batch;
  // No past tokens are kept: each call has complete sequences.
  BegunStep step = begin_step(method_, input, input.q.device(), Rotation::kQueries, [](std::int64_t) { return 0; });
  const SideTransform* key = method_.transform(input.layer, Side::kKey);
  std::int64_t offset = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    const std::int64_t length = batch.lengths[s];
    if (length == 0) continue;
    std::optional<Timeline::Phase> coding(std::in_place, timeline_, kCodingPhase);
    CachedRows keys = decoded_rows(method_, input.layer, Side::kKey, input.k.narrow(0, offset, length));
    const CachedRows values = input.k_rope.defined()
                                  ? keys
                                  : decoded_rows(method_, input.layer, Side::kValue, input.v.narrow(0, offset, length));
    coding.reset();
    if (key != nullptr && key->rotated_mean) {
      add_mean(keys, mean_rows(*key, method_.rope_phases->rows(0, length).to(input.q.device())));
    }
    const auto part = [&](const at::Tensor& x) { return x.defined() ? x.narrow(0, offset, length) : x; };
    add_rope(keys, part(input.k_rope));
    const at::Tensor q = with_rope(part(step.q), part(input.q_rope));
    if (!step.shift.defined() && flash_prefill_runs(input, keys, values)) {
      part(step.output).copy_(attend_flash(input, q, keys, values));
      offset += length;
      continue;
    }
    part(step.output).copy_(attend_cached(input, q, keys, values, part(step.shift), part(step.weight_sum)));
    offset += length;
  }
  return model_outputs(method_, input, step);
}

}  // namespace oscar
