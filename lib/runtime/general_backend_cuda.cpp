// The decode path on a GPU for caches that the fast kernels do not hold: rows are coded on the CPU by PagedCache, what
// changed is copied to device memory (device_mirror.h), and the general kernel attends over it. CPU twin:
// paged_backend_cpu.cpp.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <limits>

#include "model/phase_table.h"
#include "runtime/basis.h"
#include "runtime/batch_steps.h"
#include "runtime/device_launch.h"
#include "runtime/device_mirror.h"
#include "runtime/general_launch.h"
#include "runtime/paged_backend.h"
#include "runtime/paged_cache_input.h"

namespace oscar {
namespace {

constexpr std::array<Side, 2> kSides{Side::kKey, Side::kValue};

class GeneralCudaBackend : public PagedBackend {
 public:
  GeneralCudaBackend(const KvMethod& method, const ModelConfig& model, at::Device device)
      : method_(method),
        device_(device),
        cache_(layer_specs(method, model), static_cast<std::int32_t>(model.kv_heads),
               static_cast<std::int32_t>(model.head_dim), method.windows),
        mirror_(model.layers, model.kv_heads, model.head_dim, device),
        launcher_(device),
        sigma_(static_cast<std::size_t>(model.layers)) {}

  at::Tensor attend(const AttentionInput& input) override;
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override { cache_.release(sequence), mirror_.release(sequence); }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    return cache_.tokens(layer, sequence);
  }
  StoredPages stored(std::int64_t layer, std::int64_t sequence) const override;
  std::uint64_t allocated_bytes() const override { return mirror_.bytes(); }

 private:
  HeldSide held(std::int64_t layer, std::int64_t id, Side side) const;
  void update(std::int64_t layer, std::int64_t id) {
    for (const Side side : kSides) mirror_.update(layer, id, side, held(layer, id, side));
  }
  const float* sigma(std::int64_t layer, Side side);
  const float* phases(const SequenceBatch& batch);

  const KvMethod& method_;
  at::Device device_;
  PagedCache cache_;
  DeviceMirror mirror_;  // the pages of both sides are with the keys
  GeneralLauncher launcher_;
  std::vector<std::array<at::Tensor, 2>> sigma_;  // [layers] of [Hkv, 4]
  at::Tensor phases_;                             // [positions so far, d]
};

HeldSide GeneralCudaBackend::held(std::int64_t layer, std::int64_t id, Side side) const {
  const SequenceView view = cache_.view(layer, id);
  DecodeAttentionParams pool;
  cache_.describe(layer, pool);
  HeldSide held;
  held.sink = side == Side::kKey ? view.sink.key : view.sink.value;
  held.ring = side == Side::kKey ? view.recent.key : view.recent.value;
  // Where nothing is coded all tokens are in the sink.
  held.sink_rows = method_.quantised ? method_.windows.sink : std::numeric_limits<std::int32_t>::max();
  held.ring_rows = view.recent.capacity;
  held.tokens = cache_.tokens(layer, id), held.body = view.body_tokens;
  held.pool = side == Side::kKey ? pool.pages : nullptr;
  held.pages = view.page_table;
  held.page_bytes = std::int64_t{pool.page.bytes()} * pool.kv_heads, held.page_tokens = kPageTokens;
  return held;
}

const float* GeneralCudaBackend::sigma(std::int64_t layer, Side side) {
  at::Tensor& x = sigma_[static_cast<std::size_t>(layer)][side == Side::kKey ? 0 : 1];
  if (!x.defined()) {
    DecodeAttentionParams pool;
    cache_.describe(layer, pool);
    // from_blob does not write through its pointer.
    auto* source = const_cast<float*>(side == Side::kKey ? pool.key_sigma : pool.value_sigma);
    x = at::from_blob(source, {pool.kv_heads, kBlocks}, at::kFloat).to(device_);
  }
  return x.const_data_ptr<float>();
}

// Of all positions up to the end of the batch.
const float* GeneralCudaBackend::phases(const SequenceBatch& batch) {
  std::int64_t positions = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    positions = std::max(positions, batch.starts[s] + batch.lengths[s]);
  }
  const std::int64_t held = phases_.defined() ? phases_.size(0) : 0;
  if (positions > held) {
    phases_ = method_.phases->rows(0, std::max(positions, held + held / 2)).contiguous().to(device_);
  }
  return phases_.const_data_ptr<float>();
}

at::Tensor GeneralCudaBackend::attend(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  const std::int64_t layer = input.layer, heads = input.q.size(1), kv_heads = input.k.size(1);
  const SideTransform* key = method_.transform(layer, Side::kKey);
  const SideTransform* value = method_.transform(layer, Side::kValue);
  const at::Tensor model_q = input.q.to(device_), q = rotate_queries(model_q, key, kv_heads);
  const at::Tensor k = new_key_rows(method_, input), v = new_value_rows(method_, input);
  const RowBits keys(k), values(v);
  at::Tensor shift, sinks, weight_sum, turned, out = at::empty_like(q);
  if (input.soft_cap > 0.0 || input.sinks.defined()) shift = logit_shift(model_q, key, kv_heads, input.scale);
  if (input.sinks.defined()) {
    sinks = input.sinks.to(device_, at::kFloat).contiguous();
    weight_sum = at::empty({q.size(0), heads}, q.options());
  }
  const bool rotated_mean = key != nullptr && key->rotated_mean;
  if (rotated_mean) turned = phase_queries(input.q, key->mean).to(device_).contiguous();
  DecodeAttentionParams described;
  cache_.describe(layer, described);

  for_each_step(*input.batch, [&](const std::vector<StepToken>& tokens) {
    std::vector<std::int64_t> rows;
    for (const StepToken& token : tokens) {
      cache_.append(layer, token.id, keys[token.row], values[token.row]);
      update(layer, token.id);
      rows.push_back(token.row);
    }
    std::vector<std::int32_t> tables;  // page ids of all sequences
    for (const StepToken& token : tokens) {
      const HeldSide side = held(layer, token.id, Side::kKey);
      tables.insert(tables.end(), side.pages, side.pages + (side.body + kPageTokens - 1) / kPageTokens);
    }
    const at::Tensor device_tables = at::tensor(tables, at::kInt).to(device_);
    const std::int32_t* table = device_tables.const_data_ptr<std::int32_t>();
    std::vector<kernels::GeneralSequence> sequences;
    for (const StepToken& token : tokens) {
      const HeldSide key_side = held(layer, token.id, Side::kKey), value_side = held(layer, token.id, Side::kValue);
      sequences.push_back({mirror_.sequence_side(layer, token.id, Side::kKey, key_side, table),
                           mirror_.sequence_side(layer, token.id, Side::kValue, value_side, table),
                           static_cast<std::int32_t>(key_side.tokens)});
      table += (key_side.body + kPageTokens - 1) / kPageTokens;
    }

    const at::Tensor index = at::tensor(rows, at::kLong).to(device_);
    const auto select = [&](const at::Tensor& x) { return x.defined() ? x.index_select(0, index) : at::Tensor(); };
    const at::Tensor step_q = select(q), step_turned = select(turned), step_shift = select(shift);
    at::Tensor step_out = at::empty_like(step_q), step_sum;
    if (weight_sum.defined()) step_sum = at::empty({std::ssize(rows), heads}, q.options());
    kernels::GeneralAttentionParams p{};
    p.query = step_q.const_data_ptr<float>(), p.logit_shift = pointer<float>(step_shift);
    p.position_query = pointer<float>(step_turned), p.phases = rotated_mean ? phases(*input.batch) : nullptr;
    p.sink_logits = pointer<float>(sinks);
    p.output = step_out.mutable_data_ptr<float>();
    p.weight_sum = step_sum.defined() ? step_sum.mutable_data_ptr<float>() : nullptr;
    const std::uint8_t* pages = mirror_.pages(layer, Side::kKey);
    p.key = general_side(described.page, Side::kKey, kv_heads, pages, sigma(layer, Side::kKey));
    p.value = general_side(described.page, Side::kValue, kv_heads, pages, sigma(layer, Side::kValue));
    launcher_.launch(p, input, sequences);
    out.index_copy_(0, index, step_out);
    if (weight_sum.defined()) weight_sum.index_copy_(0, index, step_sum);
  });
  return restore_outputs(out, value, kv_heads, weight_sum).to(input.q.options());
}

void GeneralCudaBackend::append(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  const at::Tensor k = new_key_rows(method_, input), v = new_value_rows(method_, input);
  for_each_row(*input.batch, k, v, [&](std::int64_t id, const std::uint16_t* key, const std::uint16_t* value) {
    cache_.append(input.layer, id, key, value);
  });
  for (std::size_t s = 0; s < input.batch->ids.size(); ++s) {
    if (input.batch->lengths[s] > 0) update(input.layer, input.batch->ids[s]);
  }
}

// From the memory that the kernel reads.
StoredPages GeneralCudaBackend::stored(std::int64_t layer, std::int64_t sequence) const {
  DecodeAttentionParams pool;
  cache_.describe(layer, pool);
  StoredPages stored{pool.page, 0, {}};
  if (cache_.tokens(layer, sequence) == 0) return stored;
  const HeldSide side = held(layer, sequence, Side::kKey);
  stored.tokens = static_cast<std::int32_t>(side.body);
  if (side.body == 0) return stored;
  const std::vector<std::int64_t> ids(side.pages, side.pages + (side.body + kPageTokens - 1) / kPageTokens);
  const at::Tensor pages =
      mirror_.pool(layer, Side::kKey).index_select(0, at::tensor(ids, at::kLong).to(device_)).to(at::kCPU).contiguous();
  const auto* bytes = pages.const_data_ptr<std::uint8_t>();
  stored.pages.assign(bytes, bytes + pages.nbytes());
  return stored;
}

}  // namespace

std::unique_ptr<PagedBackend> make_general_cuda_backend(const KvMethod& method, const ModelConfig& model,
                                                        at::Device device) {
  return std::make_unique<GeneralCudaBackend>(method, model, device);
}

}  // namespace oscar
