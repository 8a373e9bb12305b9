// A block of queries sees three runs of tokens on each side: coded for all queries, coded for some, and BF16 for all.
// The middle run is short (the block and a flush), so both of its versions are multiplied and a mask chooses.
#include "attention/prefill_core.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace oscar {
namespace {

// A smaller weight changes no FP32 sum with the largest weight, which is at least 1/T. If kept, the denormal weights of
// sharp distributions slow a CPU's product with the values many times over.
constexpr double kNegligibleWeight = 1e-30;

// Queries per block, from the FP32 scores held at once: about the size of a core's own cache. A GPU uses longer blocks,
// since its launches cost more than memory.
std::int64_t query_block(std::int64_t heads, std::int64_t tokens, at::Device device) {
  const std::int64_t elements = std::int64_t{1} << (device.is_cuda() ? 27 : 19);
  return std::clamp<std::int64_t>(elements / (heads * tokens), 16, device.is_cuda() ? 1024 : 128);
}

// Tokens of one side that the queries [first, last) of a block see.
struct BlockRows {
  at::Tensor mixed;         // [Hkv, columns, d]: coded if all queries see the code, else plain
  at::Tensor coded;         // [Hkv, some, d]: the tokens that only some queries see coded; undefined: none
  at::Tensor sees_code;     // [queries, some] 1 if the query reads the code
  std::int64_t offset = 0;  // first column of those tokens
};

// Call with blocks in ascending order. The coded range only grows, so codes replace plain rows in one buffer.
class MixedRows {
 public:
  explicit MixedRows(const CachedRows& rows) : rows_(rows), mixed_(rows.plain), end_(rows.windows.sink) {
    if (rows.coded.defined()) mixed_ = rows.plain.clone();
  }

  BlockRows block(std::int64_t from, std::int64_t first, std::int64_t last) {
    BlockRows block;
    const CacheWindows& w = rows_.windows;
    std::int64_t all = last, some = last;
    if (rows_.coded.defined()) {
      all = std::clamp(w.quantized_end(first + 1), std::min(w.sink, last), last);
      some = std::clamp(w.quantized_end(last), all, last);
      if (all > end_) mixed_.narrow(1, end_, all - end_).copy_(rows_.coded.narrow(1, end_, all - end_));
      end_ = std::max(end_, all);
    }
    block.mixed = mixed_.narrow(1, from, last - from);
    const std::int64_t begin = std::max(all, from);
    if (some <= begin) return block;
    block.offset = begin - from;
    block.coded = rows_.coded.narrow(1, begin, some - begin);
    ColumnRanges coded;
    for (std::int64_t i = first; i < last; ++i)
      coded.begin.push_back(begin), coded.end.push_back(w.quantized_end(i + 1));
    block.sees_code = columns_within(coded, begin, some - begin, rows_.plain.device());
    return block;
  }

 private:
  const CachedRows& rows_;
  at::Tensor mixed_;  // [Hkv, T, d]
  std::int64_t end_;  // tokens of [sink, end) are coded in mixed_
};

// For codes that come in groups: the first position after `first` whose query sees more codes than the query at
// `first`. A block that ends there needs one version of every row. Returns `last` if codes come one by one, or if that
// position is later.
std::int64_t next_flush(const CachedRows& rows, std::int64_t first, std::int64_t last) {
  const CacheWindows& w = rows.windows;
  if (!rows.coded.defined() || w.flush <= 1) return last;
  const std::int64_t leaving = std::max<std::int64_t>(first + 1 - w.sink - w.recent, 0);
  return std::min(last, w.sink + w.recent + (leaving / w.flush + 1) * w.flush - 1);
}

// 0 if query i sees column j, else -inf: [queries, columns], columns from token `from` on.
at::Tensor causal_mask(std::int64_t from, std::int64_t first, std::int64_t last, const AttentionInput& input,
                       at::Device device) {
  ColumnRanges seen;
  for (std::int64_t i = first; i < last; ++i) seen.begin.push_back(input.first_key(i)), seen.end.push_back(i + 1);
  const at::Tensor sees = columns_within(seen, from, last - from, device);
  return at::zeros_like(sees).masked_fill_(sees.lt(0.5f), -std::numeric_limits<float>::infinity());
}

}  // namespace

void add_mean(CachedRows& keys, const at::Tensor& mean_rows) {
  for (at::Tensor* rows : {&keys.plain, &keys.coded}) {
    if (rows->defined()) *rows = *rows + mean_rows;
  }
}

void add_rope(CachedRows& keys, const at::Tensor& k_rope) {
  if (!k_rope.defined()) return;
  const at::Tensor rope = k_rope.to(at::kBFloat16).transpose(0, 1);
  for (at::Tensor* rows : {&keys.plain, &keys.coded}) {
    if (rows->defined()) *rows = with_rope(*rows, rope);
  }
}

at::Tensor attend_cached(const AttentionInput& input, const at::Tensor& q, const CachedRows& keys,
                         const CachedRows& values, const at::Tensor& shift, const at::Tensor& weight_sum) {
  const std::int64_t tokens = q.size(0), heads = q.size(1), key_d = q.size(2), kv_heads = keys.plain.size(0);
  const std::int64_t gqa_group = heads / kv_heads, d = values.plain.size(2);
  at::Tensor out = at::empty({tokens, heads, d}, q.options());
  const std::int64_t block = query_block(heads, tokens, q.device());
  at::Tensor buffer = at::empty({heads * block * tokens}, q.options());  // for the scores of all blocks: allocated once
  MixedRows key_rows(keys), value_rows(values);
  const at::Tensor scaled = q * input.scale;
  const auto by_head = [&](const at::Tensor& x) {  // [C, Hq, ...] -> [Hkv, g, C, ...]
    std::vector<std::int64_t> sizes{x.size(0), kv_heads, gqa_group};
    if (x.dim() == 3) sizes.push_back(x.size(2));
    return x.view(sizes).transpose(0, 1).transpose(1, 2);
  };
  for (std::int64_t first = 0, last = 0; first < tokens; first = last) {
    last = std::min(first + block, tokens);
    if (!q.is_cuda()) last = next_flush(values, first, next_flush(keys, first, last));
    const std::int64_t count = last - first;
    const std::int64_t from = input.first_key(first);
    const std::int64_t columns = last - from;
    const BlockRows k = key_rows.block(from, first, last), v = value_rows.block(from, first, last);
    const at::Tensor queries = by_head(scaled.narrow(0, first, count)).reshape({kv_heads, gqa_group * count, key_d});
    at::Tensor scores = buffer.narrow(0, 0, heads * count * columns).view({kv_heads, gqa_group * count, columns});
    at::bmm_out(scores, queries, k.mixed.transpose(1, 2));
    scores = scores.view({kv_heads, gqa_group, count, columns});
    if (k.coded.defined()) {
      const std::int64_t some = k.coded.size(1);
      const at::Tensor coded = at::bmm(queries, k.coded.transpose(1, 2)).view({kv_heads, gqa_group, count, some});
      at::Tensor part = scores.narrow(3, k.offset, some);
      part.copy_(at::where(k.sees_code.gt(0.5f), coded, part));
    }
    if (shift.defined()) scores.add_(by_head(shift.narrow(0, first, count)).unsqueeze(-1));
    if (input.soft_cap > 0.0) scores.div_(input.soft_cap).tanh_().mul_(input.soft_cap);
    // Without a window or chunks, only the block's own columns are hidden from some of its queries.
    const std::int64_t masked = input.sees_all() ? first : from;
    scores.narrow(3, masked - from, last - masked).add_(causal_mask(masked, first, last, input, q.device()));
    if (input.sinks.defined()) {
      const at::Tensor sinks = input.sinks.to(q.device(), at::kFloat).view({kv_heads, gqa_group, 1, 1});
      scores = at::softmax(at::cat({scores, sinks.expand({kv_heads, gqa_group, count, 1})}, -1), -1)
                   .narrow(-1, 0, columns)
                   .contiguous();
      weight_sum.narrow(0, first, count).view({count, kv_heads, gqa_group}).copy_(scores.sum(-1).permute({2, 0, 1}));
    } else {
      at::_softmax_out(scores, scores, -1, false);  // row by row, in place
    }
    if (!q.is_cuda()) at::threshold_(scores, kNegligibleWeight, 0.0);
    at::Tensor coded_weights;
    if (v.coded.defined()) {
      at::Tensor part = scores.narrow(3, v.offset, v.coded.size(1));
      coded_weights = (part * v.sees_code).reshape({kv_heads, gqa_group * count, v.coded.size(1)});
      part.mul_(1.0 - v.sees_code);
    }
    at::Tensor o = at::bmm(scores.view({kv_heads, gqa_group * count, columns}), v.mixed);
    if (v.coded.defined()) o.add_(at::bmm(coded_weights, v.coded));
    out.narrow(0, first, count)
        .view({count, kv_heads, gqa_group, d})
        .copy_(o.view({kv_heads, gqa_group, count, d}).permute({2, 0, 1, 3}));
  }
  return out;
}

at::Tensor columns_within(const ColumnRanges& ranges, std::int64_t from, std::int64_t columns, at::Device device) {
  std::vector<std::int64_t> both = ranges.begin;  // together, for a single copy to the device
  both.insert(both.end(), ranges.end.begin(), ranges.end.end());
  const at::Tensor bounds = at::tensor(both, at::kLong).view({2, std::ssize(ranges.begin), 1}).to(device, at::kInt);
  const at::Tensor column = at::arange(from, from + columns, at::TensorOptions(at::kInt).device(device));
  return column.ge(bounds[0]).logical_and_(column.lt(bounds[1])).to(at::kFloat);
}

}  // namespace oscar
