#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "attention/fast_prefill.h"
#include "curves/profile_attention.h"

namespace oscar {
namespace {

// Rows [S start + S P rest, H, d] of a shared_start_batch() as complete sequences, [S P (start + rest), H, d].
at::Tensor as_sequences(const at::Tensor& rows, std::int64_t sequences, std::int64_t copies, std::int64_t start) {
  const auto sizes = [&](std::int64_t tokens) {
    return std::vector<std::int64_t>{sequences, copies, tokens, rows.size(1), rows.size(2)};
  };
  const std::int64_t shared = sequences * start, rest = (rows.size(0) - shared) / (sequences * copies);
  const at::Tensor first = rows.narrow(0, 0, shared).unflatten(0, {sequences, 1, start}).expand(sizes(start));
  return at::cat({first, rows.narrow(0, shared, rows.size(0) - shared).view(sizes(rest))}, 2).flatten(0, 2);
}

}  // namespace

SequenceBatch shared_start_batch(std::int64_t start, std::int64_t tokens, std::int64_t copies, std::int64_t sequences) {
  SequenceBatch batch;
  for (std::int64_t i = 0; i < sequences * (1 + copies); ++i) {
    const bool shared = i < sequences;
    batch.ids.push_back(i);
    batch.lengths.push_back(shared ? start : tokens - start);
    batch.starts.push_back(shared ? 0 : start);
  }
  return batch;
}

at::Tensor SharedStartAttention::attend(const AttentionInput& input) {
  if (input.k_rope.defined()) return attend(with_rope(input));
  const SequenceBatch& batch = *input.batch;
  const std::int64_t sequences = std::count(batch.starts.begin(), batch.starts.end(), 0);
  const std::int64_t all = std::ssize(batch.lengths) - sequences, copies = sequences > 0 ? all / sequences : 0;
  if (copies < 1 || !input.asked.defined()) {
    throw std::invalid_argument("SharedStartAttention needs copies and requested rows");
  }
  const std::int64_t start = batch.lengths.front(), rest = batch.lengths.back(), shared = sequences * start;
  if (!fused_prefill_runs(input)) {
    const AttentionInput full = with_all_queries(input);
    const auto whole = [&](const at::Tensor& rows) { return as_sequences(rows, sequences, copies, start); };
    AttentionInput each = full;
    each.q = whole(full.q), each.k = whole(full.k), each.v = whole(full.v);
    const SequenceBatch complete{std::vector<std::int64_t>(batch.ids.end() - all, batch.ids.end()),
                                 std::vector<std::int64_t>(static_cast<std::size_t>(all), start + rest),
                                 std::vector<std::int64_t>(static_cast<std::size_t>(all), 0)};
    each.batch = &complete;
    const at::Tensor rows = input.asked.to(input.q.device()).sub(shared);  // among the copies' own
    return exact_.attend(each).index_select(0, rows.div(rest, "floor").add_(1).mul_(start).add_(rows));
  }
  const std::int64_t count = input.asked.size(0) / all;
  // The first copy's rows are at their positions but for the other sequences' starts.
  const at::Tensor of_first = input.asked.narrow(0, 0, count), positions = of_first - (shared - start);
  const CachedRows k = exact_rows(input.k), v = exact_rows(input.v);
  at::Tensor out = at::empty({input.q.size(0), input.q.size(1), input.v.size(2)}, input.q.options());
  for (std::int64_t copy = 0; copy < all; ++copy) {
    if (!at::equal(input.asked.narrow(0, copy * count, count), of_first + copy * rest)) {
      throw std::invalid_argument("SharedStartAttention answers the same queries of each copy");
    }
    const auto rows_of = [&](const CachedRows& rows) {
      return CachedRows{at::cat({rows.plain.narrow(1, copy / copies * start, start),
                                 rows.plain.narrow(1, shared + copy * rest, rest)},
                                1),
                        {},
                        {}};
    };
    const at::Tensor q = input.q.narrow(0, copy * count, count).to(at::kFloat);
    out.narrow(0, copy * count, count).copy_(attend_fused(input, q, positions, rows_of(k), rows_of(v)));
  }
  return out;
}

}  // namespace oscar
