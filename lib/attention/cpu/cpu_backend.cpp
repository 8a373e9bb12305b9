// The decode path on the CPU: KvCache, and decode attention distributed over threads (decode_attention_cpu.h).
#include <ATen/ATen.h>

#include <algorithm>

#include "attention/begin_step.h"
#include "attention/cache_factory.h"
#include "attention/cpu/decode_attention_cpu.h"
#include "attention/cpu/decode_group.h"
#include "attention/paged_backend.h"
#include "base/parallel.h"
#include "cache/row_loops.h"

namespace oscar {
namespace {

class CpuBackend : public PagedBackend {
 public:
  CpuBackend(const KvMethod& method, const ModelConfig& model) : method_(method), cache_(cache_spec(method, model)) {}
  at::Tensor attend(const AttentionInput& input) override;
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override { cache_.release(sequence); }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    return cache_.tokens(layer, sequence);
  }
  StoredPages stored(std::int64_t layer, std::int64_t sequence, Side side) const override;
  std::int64_t pages_in_use() const override { return cache_.pages_in_use(); }
  std::uint64_t allocated_bytes() const override { return cache_.allocated_bytes(); }

 private:
  void attend_step(const AttentionInput& input, const std::vector<StepToken>& tokens, BegunStep& step) const;

  const KvMethod& method_;
  KvCache cache_;
};

at::Tensor CpuBackend::attend(const AttentionInput& input) {
  BegunStep step = begin_step(method_, input, at::kCPU, Rotation::kQueriesAndRows,
                              [&](std::int64_t id) { return cache_.tokens(input.layer, id); });
  const RowBits keys(step.keys), values(step.values), rope(step.rope);
  for_each_step(*input.batch, [&](const std::vector<StepToken>& tokens) {
    append_step(cache_, input.layer, tokens, keys, values, rope);
    attend_step(input, tokens, step);  // after all appends, since they may move memory
  });
  return model_outputs(method_, input, step);
}

// Attention of the newest token of each of these sequences over its cache.
void CpuBackend::attend_step(const AttentionInput& input, const std::vector<StepToken>& tokens, BegunStep& x) const {
  const std::int64_t heads = input.q.size(1), d = input.q.size(2);
  std::vector<float> queries, positions, shifts, outputs(tokens.size() * static_cast<std::size_t>(heads * d)),
      sums(tokens.size() * static_cast<std::size_t>(heads));
  std::vector<SideView> keys, values;
  std::vector<std::vector<float>> ropes;  // of latent attention, by token
  const auto add = [](std::vector<float>& to, const at::Tensor& rows, std::int64_t row, std::int64_t count) {
    if (!rows.defined()) return;
    const float* source = rows.const_data_ptr<float>() + row * count;
    to.insert(to.end(), source, source + count);
  };
  for (const StepToken& token : tokens) {
    add(queries, x.q, token.row, heads * d);
    if (x.positions.defined()) add(positions, x.positions, token.row, heads * x.positions.size(2));
    add(shifts, x.shift, token.row, heads);
    keys.push_back(cache_.view(input.layer, token.id, Side::kKey));
    values.push_back(cache_.view(input.layer, token.id, Side::kValue));
    if (method_.rope_dim == 0) continue;
    const std::int64_t count = keys.back().tokens() * method_.rope_dim;
    widen_row(cache_.rope(input.layer, token.id), static_cast<int>(count),
              ropes.emplace_back(static_cast<std::size_t>(count)).data());
  }
  TieredDecodeParams p;
  p.batch = static_cast<std::int32_t>(tokens.size());
  p.query_heads = static_cast<std::int32_t>(heads), p.kv_heads = static_cast<std::int32_t>(input.k.size(1));
  p.head_dim = static_cast<std::int32_t>(d);
  p.softmax_scale = static_cast<float>(input.scale), p.soft_cap = static_cast<float>(input.soft_cap);
  p.sliding_window = static_cast<std::int32_t>(input.sliding_window);
  p.chunk = static_cast<std::int32_t>(input.chunk);
  p.query = queries.data();
  p.sink_logits = x.sinks.defined() ? x.sinks.const_data_ptr<float>() : nullptr;
  p.logit_shift = x.shift.defined() ? shifts.data() : nullptr;
  p.output = outputs.data(), p.weight_sum = sums.data();
  PositionLogits logits{positions.data(), {}, 0};
  if (x.rope_phases.defined()) logits.rows.assign(tokens.size(), x.rope_phases.const_data_ptr<float>());
  for (const std::vector<float>& rows : ropes) logits.rows.push_back(rows.data());
  if (x.positions.defined()) logits.width = static_cast<int>(x.positions.size(2));
  const PositionLogits* by_position = x.positions.defined() ? &logits : nullptr;
  std::vector<SequenceView> sequences;
  for (std::size_t i = 0; i < tokens.size(); ++i) sequences.push_back(joint_view(keys[i], values[i]));
  p.sequences = sequences.data(), p.pages = keys.front().pool;
  decode_attention_cpu(p, *keys.front().pages, *values.front().pages, by_position);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto put = [&](at::Tensor& to, const std::vector<float>& from, std::int64_t count) {
      if (!to.defined()) return;
      std::copy_n(from.begin() + static_cast<std::int64_t>(i) * count, count,
                  to.mutable_data_ptr<float>() + tokens[i].row * count);
    };
    put(x.output, outputs, heads * d), put(x.weight_sum, sums, heads);
  }
}

void CpuBackend::append(const AttentionInput& input) {
  append_batch(cache_, input.layer, *input.batch, new_rows(method_, input));
}

StoredPages CpuBackend::stored(std::int64_t layer, std::int64_t sequence, Side side) const {
  if (cache_.tokens(layer, sequence) == 0) return {};
  const SideView view = cache_.view(layer, sequence, side);
  StoredPages stored{view.body, {}};
  for (std::int64_t i = 0; i < view.page_count(); ++i) {
    stored.pages.insert(stored.pages.end(), view.page(i), view.page(i) + view.pages->bytes());
  }
  return stored;
}

}  // namespace

void decode_attention_cpu(const TieredDecodeParams& p, const CachePages& keys, const CachePages& values,
                          const PositionLogits* positions) {
  // Waking a thread pays off for about 2^18 cached elements each.
  std::int64_t tokens = 0;
  for (std::int32_t b = 0; b < p.batch; ++b) {
    tokens += p.sequences[b].sink.tokens + p.sequences[b].body_tokens + p.sequences[b].recent.tokens;
  }
  const std::int64_t item = std::max<std::int64_t>(tokens * p.head_dim / std::max(p.batch, 1), 1);
  const std::int64_t grain = std::max<std::int64_t>((std::int64_t{1} << 18) / item, 1);
  parallel_ranges(std::int64_t{p.batch} * p.kv_heads, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) attend_group(p, keys, values, positions, i / p.kv_heads, i % p.kv_heads);
  });
}

SequenceView joint_view(const SideView& key, const SideView& value) {
  const auto number = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  const auto tier = [&](const RowTier& k, const RowTier& v) {
    return WindowTier{k.rows, v.rows, number(k.tokens), number(k.first), number(k.capacity)};
  };
  return {tier(key.sink, value.sink), tier(key.recent, value.recent), number(key.body), key.table};
}

std::unique_ptr<PagedBackend> make_cpu_backend(const KvMethod& method, const ModelConfig& model) {
  return std::make_unique<CpuBackend>(method, model);
}

}  // namespace oscar
