// The prefill path. A block of queries sees up to five runs of keys, side by side in one product:
//   sink (BF16) | quantised for all of them | quantised for some | BF16 for the others | BF16 for all
// and a mask says which of the columns a query may use.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "base/errors.h"
#include "runtime/basis.h"
#include "runtime/cached_attention.h"

namespace oscar {
namespace {

constexpr std::int64_t kQueryBlock = 256;
constexpr std::int64_t kScoreElements = std::int64_t{1} << 24;  // FP32 scores held at once

// decode(encode(row)) of the rows [begin, end) of rows [T, Hkv, d] FP32; others are left alone.
at::Tensor quantised_rows(const KvMethod& method, std::int64_t layer, Side side, const at::Tensor& rows,
                          std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = rows.size(1), d = rows.size(2);
  at::Tensor out = rows.clone();
  constexpr std::int64_t kRows = 64;
  const std::int64_t blocks = (std::max<std::int64_t>(end - begin, 0) + kRows - 1) / kRows;
  at::parallel_for(0, blocks * heads, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      const std::int64_t head = i % heads, first = begin + i / heads * kRows, at = (first * heads + head) * d;
      try {
        quantise_rows(method.codec(layer, side, head), rows.const_data_ptr<float>() + at, std::min(kRows, end - first),
                      heads * d, out.data_ptr<float>() + at, heads * d);
      } catch (const NumericalError& e) {
        throw NumericalError("layer " + std::to_string(layer) + ", KV head " + std::to_string(head) +
                             (side == Side::kKey ? ", keys" : ", values") + " from token " + std::to_string(first) +
                             " on: " + e.what());
      }
    }
  });
  return out;
}

// One sequence in the basis of the cache.
struct Rows {
  at::Tensor key, value;                      // [Hkv, T, d] FP32, rounded to BF16
  at::Tensor key_quantised, value_quantised;  // the same with quantised rows
};

struct Run {
  bool quantised;
  std::int64_t begin, end;
};

at::Tensor gather(const at::Tensor& plain, const at::Tensor& quantised, const std::vector<Run>& runs) {
  std::vector<at::Tensor> parts;
  for (const Run& r : runs) parts.push_back((r.quantised ? quantised : plain).narrow(1, r.begin, r.end - r.begin));
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

// 0 where query first + c may use the column, -inf elsewhere: [queries, columns].
at::Tensor column_mask(const WindowPolicy& windows, bool quantised, std::int64_t first, std::int64_t queries,
                       std::int64_t window, const std::vector<Run>& runs, std::int64_t columns) {
  at::Tensor mask = at::empty({queries, columns}, at::kFloat);
  float* out = mask.data_ptr<float>();
  for (std::int64_t c = 0; c < queries; ++c) {
    const std::int64_t i = first + c, end = windows.quantised_end(i + 1);
    for (const Run& r : runs) {
      for (std::int64_t j = r.begin; j < r.end; ++j) {
        const bool is_quantised = quantised && j >= windows.sink && j < end;
        const bool seen = j <= i && (window == 0 || i - j < window) && r.quantised == is_quantised;
        *out++ = seen ? 0.0f : -std::numeric_limits<float>::infinity();
      }
    }
  }
  return mask;
}

// q: [T, Hq, d] FP32 in the basis of the keys; returns [T, Hq, d] in that of the values. weight_sum: [T, Hq], filled
// where there are sink logits.
at::Tensor attend_rows(const KvMethod& method, const AttentionInput& input, const at::Tensor& q, const Rows& rows,
                       const at::Tensor& shift, const at::Tensor& weight_sum) {
  const std::int64_t tokens = q.size(0), heads = q.size(1), d = q.size(2), kv_heads = rows.key.size(0);
  const std::int64_t group = heads / kv_heads;
  const WindowPolicy& windows = method.windows;
  at::Tensor out = at::empty({tokens, heads, d}, q.options());
  const std::int64_t block = std::clamp<std::int64_t>(kScoreElements / (heads * tokens), 16, kQueryBlock);
  const auto by_head = [&](const at::Tensor& x) {  // [C, Hq, ...] -> [Hkv, g, C, ...]
    std::vector<std::int64_t> sizes{x.size(0), kv_heads, group};
    if (x.dim() == 3) sizes.push_back(x.size(2));
    return x.view(sizes).transpose(0, 1).transpose(1, 2);
  };
  for (std::int64_t first = 0; first < tokens; first += block) {
    const std::int64_t count = std::min(block, tokens - first), last = first + count;
    const std::int64_t from =
        input.sliding_window > 0 ? std::max<std::int64_t>(0, first - input.sliding_window + 1) : 0;
    const std::int64_t sink = method.quantised ? std::min(windows.sink, last) : 0;
    const std::int64_t all = method.quantised ? std::min(windows.quantised_end(first + 1), last) : 0;
    const std::int64_t some = method.quantised ? std::min(windows.quantised_end(last), last) : 0;
    std::vector<Run> runs;
    std::int64_t columns = 0;
    for (Run r : {Run{false, 0, sink}, {true, sink, all}, {true, all, some}, {false, all, some}, {false, some, last}}) {
      r.begin = std::max(r.begin, from);
      if (r.begin >= r.end) continue;
      runs.push_back(r);
      columns += r.end - r.begin;
    }
    const at::Tensor keys = gather(rows.key, rows.key_quantised, runs);
    const at::Tensor values = gather(rows.value, rows.value_quantised, runs);
    const at::Tensor mask = column_mask(windows, method.quantised, first, count, input.sliding_window, runs, columns);
    const at::Tensor queries = by_head(q.narrow(0, first, count)).reshape({kv_heads, group * count, d});
    at::Tensor scores = at::bmm(queries, keys.transpose(1, 2)).view({kv_heads, group, count, columns});
    scores.mul_(input.scale);
    if (shift.defined()) scores.add_(by_head(shift.narrow(0, first, count)).unsqueeze(-1));
    if (input.soft_cap > 0.0) scores.div_(input.soft_cap).tanh_().mul_(input.soft_cap);
    scores.add_(mask);
    if (input.sinks.defined()) {
      const at::Tensor sinks = input.sinks.to(at::kCPU, at::kFloat).view({kv_heads, group, 1, 1});
      scores = at::softmax(at::cat({scores, sinks.expand({kv_heads, group, count, 1})}, -1), -1)
                   .narrow(-1, 0, columns)
                   .contiguous();
      weight_sum.narrow(0, first, count).view({count, kv_heads, group}).copy_(scores.sum(-1).permute({2, 0, 1}));
    } else {
      scores = at::softmax(scores, -1);
    }
    const at::Tensor o = at::bmm(scores.view({kv_heads, group * count, columns}), values);
    out.narrow(0, first, count)
        .view({count, kv_heads, group, d})
        .copy_(o.view({kv_heads, group, count, d}).permute({2, 0, 1, 3}));
  }
  return out;
}

}  // namespace

SimulatedPrefillAttention::SimulatedPrefillAttention(const KvMethod& method) : method_(method) {}

at::Tensor SimulatedPrefillAttention::attend(const AttentionInput& input) {
  const SequenceBatch& batch = *input.batch;
  const std::int64_t kv_heads = input.k.size(1);
  const SideTransform* key = method_.transform(input.layer, Side::kKey);
  const SideTransform* value = method_.transform(input.layer, Side::kValue);
  const at::Tensor q = rotate_queries(input.q, key, kv_heads);
  const at::Tensor k = cache_rows(input.k, key).to(at::kFloat), v = cache_rows(input.v, value).to(at::kFloat);
  at::Tensor shift;
  if (input.soft_cap > 0.0 || input.sinks.defined()) shift = logit_shift(input.q, key, kv_heads, input.scale);
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).contiguous(); };

  at::Tensor out = at::empty(q.sizes(), q.options()), weight_sum;
  if (input.sinks.defined()) weight_sum = at::empty({q.size(0), q.size(1)}, q.options());
  std::int64_t offset = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    const std::int64_t length = batch.lengths[s];
    if (batch.starts[s] != 0) {
      throw std::invalid_argument("SimulatedPrefillAttention keeps no past tokens: starts must be 0");
    }
    if (length == 0) continue;
    const at::Tensor k1 = k.narrow(0, offset, length).contiguous(), v1 = v.narrow(0, offset, length).contiguous();
    Rows rows{heads_first(k1), heads_first(v1), {}, {}};
    if (method_.quantised) {
      const std::int64_t begin = method_.windows.sink, end = method_.windows.quantised_end(length);
      rows.key_quantised = heads_first(quantised_rows(method_, input.layer, Side::kKey, k1, begin, end));
      rows.value_quantised = heads_first(quantised_rows(method_, input.layer, Side::kValue, v1, begin, end));
    }
    const at::Tensor shift1 = shift.defined() ? shift.narrow(0, offset, length) : shift;
    const at::Tensor sum1 = weight_sum.defined() ? weight_sum.narrow(0, offset, length) : weight_sum;
    out.narrow(0, offset, length).copy_(attend_rows(method_, input, q.narrow(0, offset, length), rows, shift1, sum1));
    offset += length;
  }
  return restore_outputs(out, value, kv_heads, weight_sum).to(input.q.options());
}

}  // namespace oscar
