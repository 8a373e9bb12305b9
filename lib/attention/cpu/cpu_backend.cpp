// The decode path on the CPU: KvCache and the CPU's decode attention.
#include <ATen/ATen.h>

#include <algorithm>

#include "attention/basis.h"
#include "attention/batch_steps.h"
#include "attention/cache_factory.h"
#include "attention/cpu/decode_attention_cpu.h"
#include "attention/paged_backend.h"

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
  void attend_step(const AttentionInput& input, const std::vector<StepToken>& tokens, CacheQueries& queries) const;

  const KvMethod& method_;
  KvCache cache_;
};

at::Tensor CpuBackend::attend(const AttentionInput& input) {
  CacheQueries queries = cache_queries(method_, input, at::kCPU);
  add_position_queries(queries, method_, input, at::kCPU);
  const auto [k, v] = new_rows(method_, input);
  const RowBits keys(k), values(v);
  for_each_step(*input.batch, [&](const std::vector<StepToken>& tokens) {
    for (const StepToken& token : tokens) cache_.append(input.layer, token.id, keys[token.row], values[token.row]);
    attend_step(input, tokens, queries);  // after all appends: they may move memory
  });
  return model_outputs(method_, input, queries);
}

// The newest token of each of these sequences over its cache.
void CpuBackend::attend_step(const AttentionInput& input, const std::vector<StepToken>& tokens, CacheQueries& x) const {
  const std::int64_t heads = input.q.size(1), d = input.q.size(2);
  std::vector<float> queries, positions, shifts, outputs(tokens.size() * static_cast<std::size_t>(heads * d)),
      sums(tokens.size() * static_cast<std::size_t>(heads));
  std::vector<SideView> keys, values;
  const auto add = [](std::vector<float>& to, const at::Tensor& rows, std::int64_t row, std::int64_t count) {
    if (!rows.defined()) return;
    const float* source = rows.const_data_ptr<float>() + row * count;
    to.insert(to.end(), source, source + count);
  };
  for (const StepToken& token : tokens) {
    add(queries, x.q, token.row, heads * d), add(positions, x.positions, token.row, heads * d);
    add(shifts, x.shift, token.row, heads);
    keys.push_back(cache_.view(input.layer, token.id, Side::kKey));
    values.push_back(cache_.view(input.layer, token.id, Side::kValue));
  }
  TieredDecodeParams p;
  p.batch = static_cast<std::int32_t>(tokens.size());
  p.query_heads = static_cast<std::int32_t>(heads), p.kv_heads = static_cast<std::int32_t>(input.k.size(1));
  p.head_dim = static_cast<std::int32_t>(d);
  p.softmax_scale = static_cast<float>(input.scale), p.soft_cap = static_cast<float>(input.soft_cap);
  p.sliding_window = static_cast<std::int32_t>(input.sliding_window);
  p.chunk = static_cast<std::int32_t>(input.chunk);
  p.logit_correction = method_.logit_correction;
  p.query = queries.data();
  p.sink_logits = x.sinks.defined() ? x.sinks.const_data_ptr<float>() : nullptr;
  p.logit_shift = x.shift.defined() ? shifts.data() : nullptr;
  p.output = outputs.data(), p.weight_sum = sums.data();
  PositionLogits logits{positions.data(), nullptr};
  if (x.rope_phases.defined()) logits.rope_phases = x.rope_phases.const_data_ptr<float>();
  const PositionLogits* by_position = x.rope_phases.defined() ? &logits : nullptr;
  if (cache_.shared_pages()) {
    std::vector<SequenceView> sequences;
    for (std::size_t i = 0; i < tokens.size(); ++i) sequences.push_back(joint_view(keys[i], values[i]));
    p.sequences = sequences.data(), p.pages = keys.front().pool;
    decode_attention_cpu(p, *keys.front().pages, *values.front().pages, by_position);
  } else {
    decode_attention_two_pass(p, keys, values, by_position);
  }
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
  const auto [k, v] = new_rows(method_, input);
  append_batch(cache_, input.layer, *input.batch, k, v);
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

std::unique_ptr<PagedBackend> make_cpu_backend(const KvMethod& method, const ModelConfig& model) {
  return std::make_unique<CpuBackend>(method, model);
}

}  // namespace oscar
