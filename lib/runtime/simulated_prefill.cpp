// The prefill path: what the cache would hold of a sequence, and attention over it (prefill_core.h).
#include <ATen/ATen.h>

#include <stdexcept>

#include "model/phase_table.h"
#include "runtime/basis.h"
#include "runtime/cached_attention.h"
#include "runtime/prefill_core.h"
#include "runtime/reconstruction.h"

namespace oscar {

SimulatedPrefillAttention::SimulatedPrefillAttention(const KvMethod& method) : method_(method) {}

at::Tensor SimulatedPrefillAttention::attend(const AttentionInput& input) {
  const SequenceBatch& batch = *input.batch;
  const std::int64_t kv_heads = input.k.size(1);
  const SideTransform* key = method_.transform(input.layer, Side::kKey);
  const SideTransform* value = method_.transform(input.layer, Side::kValue);
  const bool rotated = key != nullptr && key->rotated_mean;
  at::Tensor q = rotate_queries(input.q, key, kv_heads), out = at::empty(q.sizes(), q.options());
  if (rotated) q = at::cat({q, phase_queries(input.q, key->mean).to(q.device())}, 2);
  at::Tensor shift;
  if (input.soft_cap > 0.0 || input.sinks.defined()) shift = logit_shift(input.q, key, kv_heads, input.scale);

  at::Tensor weight_sum;
  if (input.sinks.defined()) weight_sum = at::empty({q.size(0), q.size(1)}, q.options());
  std::int64_t offset = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    const std::int64_t length = batch.lengths[s];
    if (batch.starts[s] != 0) {
      throw std::invalid_argument("SimulatedPrefillAttention keeps no past tokens: starts must be 0");
    }
    if (length == 0) continue;
    CachedRows keys = cached_rows(method_, input.layer, Side::kKey, input.k.narrow(0, offset, length));
    const CachedRows values = cached_rows(method_, input.layer, Side::kValue, input.v.narrow(0, offset, length));
    if (rotated) add_phases(keys, method_.phases->rows(0, length).to(q.device()));
    const at::Tensor shift1 = shift.defined() ? shift.narrow(0, offset, length) : shift;
    const at::Tensor sum1 = weight_sum.defined() ? weight_sum.narrow(0, offset, length) : weight_sum;
    out.narrow(0, offset, length).copy_(attend_cached(input, q.narrow(0, offset, length), keys, values, shift1, sum1));
    offset += length;
  }
  return restore_outputs(out, value, kv_heads, weight_sum).to(input.q.options());
}

}  // namespace oscar
