#include "attention/fast_prefill.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "attention/cpu/fused_attention.h"
#include "base/parallel.h"
#include "layout/side.h"

namespace oscar {
namespace {

// [Hkv, T, d] -> each head packed for the kernel; an undefined tensor stays undefined.
at::Tensor packed(const at::Tensor& rows, Side side) {
  if (!rows.defined()) return rows;
  const at::Tensor source = rows.to(at::kFloat).contiguous();
  const std::int64_t heads = source.size(0), tokens = source.size(1), d = source.size(2);
  const bool keys = side == Side::kKey;
  const std::int64_t length = kStrip * (keys ? strips_of(tokens) * d : strips_of(d) * tokens);
  at::Tensor out = at::empty({heads, length}, source.options());
  const float* from = source.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  parallel_ranges(heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      (keys ? pack_keys : pack_values)(from + h * tokens * d, tokens, d, to + h * length);
    }
  });
  return out;
}

const float* head_of(const at::Tensor& packed_rows, std::int64_t head) {
  return packed_rows.defined() ? packed_rows.const_data_ptr<float>() + head * packed_rows.size(1) : nullptr;
}

std::vector<SeenKeys> seen_by(const AttentionInput& input, const at::Tensor& asked, std::int64_t count,
                              const CachedRows& keys, const CachedRows& values) {
  const CacheWindows& windows = keys.coded.defined() ? keys.windows : values.windows;
  const bool coded = keys.coded.defined() || values.coded.defined();
  const auto* positions = asked.defined() ? asked.const_data_ptr<std::int64_t>() : nullptr;
  std::vector<SeenKeys> seen;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t position = positions != nullptr ? positions[i] : i;
    seen.push_back({position, input.first_key(position), coded ? windows.quantized_end(position + 1) : windows.sink});
  }
  return seen;
}

// Order of blocks in which two neighbors take about equally long in sum: the first, the last, the second, ...
std::int64_t paired(std::int64_t i, std::int64_t count) { return i % 2 == 0 ? i / 2 : count - 1 - i / 2; }

at::Tensor attend(const AttentionInput& input, const at::Tensor& q, const at::Tensor& asked, const CachedRows& keys,
                  const CachedRows& values, bool separate) {
  const std::int64_t count = q.size(0), heads = q.size(1), kv_heads = keys.plain.size(0);
  const at::Tensor scaled = (q * input.scale).contiguous();
  const at::Tensor plain_keys = packed(keys.plain, Side::kKey), coded_keys = packed(keys.coded, Side::kKey);
  const at::Tensor plain_values = packed(values.plain, Side::kValue), coded = packed(values.coded, Side::kValue);
  const std::vector<SeenKeys> seen = seen_by(input, asked, count, keys, values);
  FusedHead head{.tokens = keys.plain.size(1),
                 .key_d = q.size(2),
                 .sink = (keys.coded.defined() ? keys.windows : values.windows).sink,
                 .gqa_group = heads / kv_heads,
                 .value_strips = strips_of(values.plain.size(2)),
                 .coded_value_strips = coded.defined() ? strips_of(values.coded.size(2)) : 0,
                 .separate = separate};
  const std::int64_t width = head.output_strips() * kStrip, group_width = head.gqa_group * width;
  at::Tensor out = at::empty({kv_heads, count, group_width}, scaled.options());
  const std::int64_t block = fused_block(head.gqa_group), blocks = (count + block - 1) / block;
  const float* queries = scaled.const_data_ptr<float>();
  float* outputs = out.mutable_data_ptr<float>();
  parallel_ranges(blocks * kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t h = i % kv_heads, first = paired(i / kv_heads, blocks) * block;
      FusedHead own = head;
      own.keys = head_of(plain_keys, h), own.coded_keys = head_of(coded_keys, h);
      own.values = head_of(plain_values, h), own.coded_values = head_of(coded, h);
      fused_attention(own, queries + (first * heads + h * head.gqa_group) * head.key_d, heads * head.key_d,
                      seen.data() + first, std::min(block, count - first), outputs + (h * count + first) * group_width);
    }
  });
  return out.view({kv_heads, count, head.gqa_group, width}).transpose(0, 1).reshape({count, heads, width});
}

}  // namespace

bool fused_prefill_runs(const AttentionInput& input) {
  return input.q.is_cpu() && input.soft_cap == 0.0 && !input.sinks.defined();
}

at::Tensor attend_fused(const AttentionInput& input, const at::Tensor& q, const at::Tensor& asked,
                        const CachedRows& keys, const CachedRows& values) {
  return attend(input, q, asked, keys, values, false).narrow(2, 0, values.plain.size(2));
}

at::Tensor attend_fused_apart(const AttentionInput& input, const at::Tensor& q, const at::Tensor& asked,
                              const CachedRows& keys, const CachedRows& values) {
  const std::int64_t d = values.plain.size(2), coded = values.coded.size(2);
  const at::Tensor out = attend(input, q, asked, keys, values, true);
  return d % kStrip == 0 ? out.narrow(2, 0, d + coded)
                         : at::cat({out.narrow(2, 0, d), out.narrow(2, strips_of(d) * kStrip, coded)}, 2);
}

at::Tensor attend_fused_batch(const AttentionInput& input) {
  const SequenceBatch& batch = *input.batch;
  at::Tensor out = at::empty({input.q.size(0), input.q.size(1), input.v.size(2)}, input.q.options());
  const auto rows = [](const at::Tensor& x, std::int64_t first, std::int64_t count) {
    return CachedRows{x.narrow(0, first, count).to(at::kFloat).transpose(0, 1), {}, {}};
  };
  std::int64_t offset = 0, done = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    const std::int64_t length = batch.lengths[s];
    if (batch.starts[s] != 0) throw std::invalid_argument("attend_fused_batch keeps no past tokens: starts must be 0");
    at::Tensor asked;
    std::int64_t count = length;
    if (input.asked.defined()) {
      const auto* all = input.asked.const_data_ptr<std::int64_t>();
      const auto* end = std::lower_bound(all + done, all + input.asked.size(0), offset + length);
      count = end - (all + done);
      asked = input.asked.narrow(0, done, count).sub(offset);
    }
    if (count > 0) {
      const at::Tensor q = input.q.narrow(0, done, count).to(at::kFloat);
      out.narrow(0, done, count)
          .copy_(attend_fused(input, q, asked, rows(input.k, offset, length), rows(input.v, offset, length)));
    }
    offset += length, done += count;
  }
  return out;
}

}  // namespace oscar
