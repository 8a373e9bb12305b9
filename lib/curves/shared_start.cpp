#include "curves/profile_attention.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "attention/fast_prefill.h"

namespace oscar {

SequenceBatch shared_start_batch(std::int64_t start, std::int64_t tokens, std::int64_t copies) {
  SequenceBatch batch{{0}, {start}, {0}};
  for (std::int64_t copy = 1; copy <= copies; ++copy) {
    batch.ids.push_back(copy);
    batch.lengths.push_back(tokens - start);
    batch.starts.push_back(start);
  }
  return batch;
}

at::Tensor SharedStartAttention::attend(const AttentionInput& input) {
  if (input.k_rope.defined()) return attend(with_rope(input));
  const SequenceBatch& batch = *input.batch;
  const std::int64_t copies = std::ssize(batch.lengths) - 1;
  if (copies < 1 || !input.asked.defined() || !fused_prefill_runs(input)) {
    throw std::invalid_argument("SharedStartAttention needs copies, requested rows, and a layer of the fused prefill");
  }
  const std::int64_t start = batch.lengths[0], rest = batch.lengths[1], count = input.asked.size(0) / copies;
  const at::Tensor positions = input.asked.narrow(0, 0, count);  // rows of the first copy are at their positions
  const CachedRows k = exact_rows(input.k), v = exact_rows(input.v);
  const auto rows_of = [&](const CachedRows& rows, std::int64_t copy) {
    return CachedRows{
        at::cat({rows.plain.narrow(1, 0, start), rows.plain.narrow(1, start + copy * rest, rest)}, 1), {}, {}};
  };
  at::Tensor out = at::empty({input.q.size(0), input.q.size(1), input.v.size(2)}, input.q.options());
  for (std::int64_t copy = 0; copy < copies; ++copy) {
    if (!at::equal(input.asked.narrow(0, copy * count, count), positions + copy * rest)) {
      throw std::invalid_argument("SharedStartAttention answers the same queries of each copy");
    }
    const at::Tensor q = input.q.narrow(0, copy * count, count).to(at::kFloat);
    out.narrow(0, copy * count, count).copy_(attend_fused(input, q, positions, rows_of(k, copy), rows_of(v, copy)));
  }
  return out;
}

}  // namespace oscar
