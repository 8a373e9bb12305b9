// The decode path on the CPU: PagedCache and decode_attention_cpu().
#include <ATen/ATen.h>

#include <algorithm>

#include "model/phase_table.h"
#include "runtime/basis.h"
#include "runtime/batch_steps.h"
#include "runtime/decode_attention.h"
#include "runtime/paged_backend.h"
#include "runtime/paged_cache_input.h"

namespace oscar {
namespace {

class CpuBackend : public PagedBackend {
 public:
  CpuBackend(const KvMethod& method, const ModelConfig& model)
      : method_(method),
        cache_(layer_specs(method, model), static_cast<std::int32_t>(model.kv_heads),
               static_cast<std::int32_t>(model.head_dim), method.windows) {}
  at::Tensor attend(const AttentionInput& input) override;
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override { cache_.release(sequence); }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    return cache_.tokens(layer, sequence);
  }
  StoredPages stored(std::int64_t layer, std::int64_t sequence) const override;
  std::uint64_t allocated_bytes() const override { return cache_.allocated_bytes(); }
  const PagedCache* cpu_cache() const override { return &cache_; }

 private:
  const KvMethod& method_;
  PagedCache cache_;
};

at::Tensor CpuBackend::attend(const AttentionInput& input) {
  PagedCache& cache = cache_;
  const SequenceBatch& batch = *input.batch;
  const std::int64_t heads = input.q.size(1), kv_heads = input.k.size(1), d = input.q.size(2);
  const SideTransform* key = method_.transform(input.layer, Side::kKey);
  const SideTransform* value = method_.transform(input.layer, Side::kValue);
  const at::Tensor model_q = input.q.to(at::kCPU), q = rotate_queries(model_q, key, kv_heads);
  const at::Tensor k = new_key_rows(method_, input), v = new_value_rows(method_, input);
  at::Tensor shift, sinks, weight_sum, out = at::empty(q.sizes(), q.options());
  if (input.soft_cap > 0.0 || input.sinks.defined()) shift = logit_shift(model_q, key, kv_heads, input.scale);
  if (input.sinks.defined()) {
    sinks = input.sinks.to(at::kCPU, at::kFloat).contiguous();
    weight_sum = at::empty({q.size(0), heads}, q.options());
  }

  const RowBits keys(k), values(v);
  const std::int64_t row = heads * d;
  at::Tensor turned, phases;  // keys with a rotated mean: u(q), and the phases of all positions
  if (key != nullptr && key->rotated_mean) {
    std::int64_t positions = 0;
    for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
      positions = std::max(positions, batch.starts[s] + batch.lengths[s]);
    }
    turned = phase_queries(input.q, key->mean).contiguous();
    phases = method_.phases->rows(0, positions);
  }
  std::vector<float> queries, turned_queries, shifts, outputs, sums;
  std::vector<SequenceView> views;
  for_each_step(batch, [&](const std::vector<StepToken>& tokens) {
    queries.clear(), turned_queries.clear(), shifts.clear(), views.clear();
    const auto add = [](std::vector<float>& to, const at::Tensor& rows, std::int64_t index, std::int64_t count) {
      const float* source = rows.const_data_ptr<float>() + index * count;
      to.insert(to.end(), source, source + count);
    };
    for (const StepToken& token : tokens) {
      cache.append(input.layer, token.id, keys[token.row], values[token.row]);
      add(queries, q, token.row, row);
      if (turned.defined()) add(turned_queries, turned, token.row, row);
      if (shift.defined()) add(shifts, shift, token.row, heads);
    }
    // After all appends: they may move memory.
    for (const StepToken& token : tokens) views.push_back(cache.view(input.layer, token.id));
    outputs.resize(queries.size()), sums.resize(tokens.size() * static_cast<std::size_t>(heads));
    DecodeAttentionParams params;
    cache.describe(input.layer, params);
    params.batch = static_cast<std::int32_t>(tokens.size());
    params.query_heads = static_cast<std::int32_t>(heads);
    params.softmax_scale = static_cast<float>(input.scale);
    params.soft_cap = static_cast<float>(input.soft_cap);
    params.sliding_window = static_cast<std::int32_t>(input.sliding_window);
    params.query = queries.data();
    params.sink_logits = sinks.defined() ? sinks.const_data_ptr<float>() : nullptr;
    params.logit_shift = shift.defined() ? shifts.data() : nullptr;
    params.sequences = views.data();
    params.output = outputs.data();
    params.weight_sum = sums.data();
    PositionLogits positions{};
    if (turned.defined()) positions = {turned_queries.data(), phases.const_data_ptr<float>()};
    decode_attention_cpu(params, cache.key_pages(input.layer), cache.value_pages(input.layer),
                         turned.defined() ? &positions : nullptr);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t at = tokens[i].row;
      std::copy_n(outputs.begin() + static_cast<std::int64_t>(i) * row, row, out.data_ptr<float>() + at * row);
      if (!weight_sum.defined()) continue;
      std::copy_n(sums.begin() + static_cast<std::int64_t>(i) * heads, heads,
                  weight_sum.data_ptr<float>() + at * heads);
    }
  });
  return restore_outputs(out, value, kv_heads, weight_sum).to(input.q.options());
}

void CpuBackend::append(const AttentionInput& input) {
  const at::Tensor k = new_key_rows(method_, input), v = new_value_rows(method_, input);
  for_each_row(*input.batch, k, v, [&](std::int64_t id, const std::uint16_t* key, const std::uint16_t* value) {
    cache_.append(input.layer, id, key, value);
  });
}

StoredPages CpuBackend::stored(std::int64_t layer, std::int64_t sequence) const {
  DecodeAttentionParams pool;
  cache_.describe(layer, pool);
  const SequenceView view = cache_.view(layer, sequence);
  StoredPages stored{pool.page, view.body_tokens, {}};
  const std::int64_t bytes = std::int64_t{pool.page.bytes()} * pool.kv_heads;
  for (std::int32_t i = 0; i < (view.body_tokens + kPageTokens - 1) / kPageTokens; ++i) {
    const std::uint8_t* page = pool.pages + view.page_table[i] * bytes;
    stored.pages.insert(stored.pages.end(), page, page + bytes);
  }
  return stored;
}

}  // namespace

std::unique_ptr<PagedBackend> make_cpu_backend(const KvMethod& method, const ModelConfig& model) {
  return std::make_unique<CpuBackend>(method, model);
}

}  // namespace oscar
