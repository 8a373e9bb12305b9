#include "model/local_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace oscar {
namespace {

constexpr std::int64_t kWindowBlock = 512;

// q [n, Hq, d] against the last tokens of k and v [past + n, Hkv, d], in blocks of queries with the keys in their
// windows.
at::Tensor attend_window(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                         std::int64_t window) {
  const std::int64_t tokens = q.size(0), past = k.size(0) - tokens, gqa_group = q.size(1) / k.size(1);
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };  // [1, H, n, d]
  const auto repeated = [&](const at::Tensor& x) {
    return heads_first(gqa_group == 1 ? x : x.repeat_interleave(gqa_group, 1));
  };
  const at::Tensor queries = heads_first(q), keys = repeated(k), values = repeated(v);
  const auto index = at::TensorOptions().dtype(at::kLong).device(q.device());
  std::vector<at::Tensor> blocks;
  for (std::int64_t start = 0; start < tokens; start += kWindowBlock) {
    const std::int64_t count = std::min(kWindowBlock, tokens - start), last = past + start + count;
    const std::int64_t from = std::max<std::int64_t>(0, past + start - window + 1);
    const at::Tensor distance =
        at::arange(past + start, last, index).unsqueeze(1) - at::arange(from, last, index).unsqueeze(0);
    const at::Tensor mask = distance.ge(0).logical_and_(distance.lt(window));
    const at::Tensor block =
        at::scaled_dot_product_attention(queries.narrow(2, start, count), keys.narrow(2, from, last - from),
                                         values.narrow(2, from, last - from), mask, 0.0, false, scale);
    blocks.push_back(block.squeeze(0).transpose(0, 1));
  }
  return blocks.size() == 1 ? blocks.front() : at::cat(blocks);
}

// The last `count` rows, or all if there are fewer. A copy, because a view would keep the others in memory.
at::Tensor last_rows(const at::Tensor& x, std::int64_t count) {
  const std::int64_t kept = std::min(count, x.size(0));
  return x.narrow(0, x.size(0) - kept, kept).clone();
}

}  // namespace

at::Tensor local_attention(const AttentionInput& input, std::int64_t layer, RecurrentStates* kept) {
  const SequenceBatch& batch = *input.batch;
  const std::int64_t window = input.sliding_window;
  if (window < 1 || input.soft_cap > 0.0 || input.sinks.defined()) {
    throw std::invalid_argument("local_attention: serves layers with a window, and no soft cap or sinks");
  }
  std::vector<at::Tensor> rows;
  std::int64_t first = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    const std::int64_t length = batch.lengths[s];
    if (length == 0) continue;
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, length); };
    at::Tensor k = part(input.k), v = part(input.v);
    if (kept == nullptr && batch.starts[s] != 0) {
      throw std::invalid_argument("local_attention: nothing was kept of the sequence, so it must start at 0");
    }
    if (kept != nullptr) {
      const RecurrentState& before = kept->before(layer, batch.ids[s], batch.starts[s]);
      if (before.tokens > 0) {
        k = at::cat({before.keys, k});
        v = at::cat({before.values, v});
      }
    }
    rows.push_back(attend_window(part(input.q), k, v, input.scale, window));
    if (kept != nullptr) {
      RecurrentState after;
      after.keys = last_rows(k, window - 1), after.values = last_rows(v, window - 1);
      after.tokens = batch.starts[s] + length;
      kept->keep(layer, batch.ids[s], std::move(after));
    }
    first += length;
  }
  if (rows.empty()) return at::empty_like(input.q);
  return rows.size() == 1 ? rows.front() : at::cat(rows);
}

}  // namespace oscar
