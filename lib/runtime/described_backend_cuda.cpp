// The decode path of methods of other papers on a GPU: rows are coded on the CPU by DescribedCache, what changed is
// copied to device memory (device_mirror.h), and the attention over it runs there: KIVI's and OScaR's by a kernel of
// their own (kernels/described_attention.h), the others' by the general one.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>

#include "kernels/described_attention.h"
#include "methods/hadamard_rows.h"
#include "runtime/basis.h"
#include "runtime/batch_steps.h"
#include "runtime/described_cache.h"
#include "runtime/device_launch.h"
#include "runtime/device_mirror.h"
#include "runtime/general_launch.h"
#include "runtime/paged_backend.h"

namespace oscar {
namespace {

constexpr std::int64_t kPage = kDescribedPageTokens;

class DescribedCudaBackend : public PagedBackend {
 public:
  DescribedCudaBackend(const KvMethod& method, const ModelConfig& model, at::Device device, bool general)
      : general_(general),
        method_(method.engine->description()),
        device_(device),
        kv_heads_(model.kv_heads),
        head_dim_(model.head_dim),
        cache_(method_, model.layers, model.kv_heads, model.head_dim),
        mirror_(model.layers, model.kv_heads, model.head_dim, device),
        launcher_(device) {
    for (const Side side : kSides) rotations_[at(side)] = rotation(side_of(side));
  }

  at::Tensor attend(const AttentionInput& input) override;
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override { cache_.release(sequence), mirror_.release(sequence); }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    return cache_.tokens(layer, sequence);
  }
  StoredPages stored(std::int64_t, std::int64_t) const override {
    throw std::logic_error("a method of another paper has pages of its own: use described()");
  }
  std::uint64_t allocated_bytes() const override { return mirror_.bytes(); }
  const DescribedCache* described_cache() const override { return &cache_; }

 private:
  static constexpr std::array<Side, 2> kSides{Side::kKey, Side::kValue};
  static std::size_t at(Side side) { return side == Side::kKey ? 0 : 1; }
  // One token of each of some sequences, and what the kernels read and write of them.
  struct Step {
    const AttentionInput& input;
    const std::vector<StepToken>& tokens;
    const std::int32_t* table;               // page ids on the device: of each sequence, keys then values
    const float *q, *q_coded, *sink_logits;  // [tokens, Hq, d] x 2, [Hq] or null
    float *plain, *coded;                    // [tokens, Hq, d]
  };

  const SideDescription& side_of(Side side) const { return side == Side::kKey ? method_.key : method_.value; }
  at::Tensor rotation(const SideDescription& side) const;
  HeldSide held(std::int64_t layer, std::int64_t id, Side side) const;
  void update(std::int64_t layer, std::int64_t id) {
    for (const Side side : kSides) mirror_.update(layer, id, side, held(layer, id, side));
  }
  kernels::DescribedSide device_side(std::int64_t layer, Side side, const DescribedSideView& view) const;
  void attend_fast(const Step& step);
  void attend_general(const Step& step);

  const bool general_;
  const MethodDescription& method_;
  at::Device device_;
  std::int64_t kv_heads_, head_dim_;
  DescribedCache cache_;
  DeviceMirror mirror_;
  GeneralLauncher launcher_;
  std::array<at::Tensor, 2> rotations_;  // [d, d], undefined: none
  at::Tensor workspace_;
};

at::Tensor DescribedCudaBackend::rotation(const SideDescription& side) const {
  if (side.basis != CacheBasis::kHadamard) return {};
  at::Tensor h = at::eye(head_dim_, at::kFloat);
  hadamard_rows(h.mutable_data_ptr<float>(), head_dim_, head_dim_, head_dim_, hadamard_order_of(side, head_dim_));
  return h.to(device_);
}

HeldSide DescribedCudaBackend::held(std::int64_t layer, std::int64_t id, Side side) const {
  const DescribedSideView view = cache_.view(layer, id, side);
  HeldSide held;
  held.sink = view.sink->data(), held.ring = view.ring->data();
  held.sink_rows = view.sink_rows, held.ring_rows = view.ring_rows;
  held.tokens = view.tokens, held.body = view.body;
  held.pool = view.pool, held.pages = view.pages->data();
  held.page_bytes = view.page_bytes, held.page_tokens = kPage;
  return held;
}

void DescribedCudaBackend::append(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  const at::Tensor k = cache_rows(input.k, nullptr), v = cache_rows(input.v, nullptr);
  for_each_row(*input.batch, k, v, [&](std::int64_t id, const std::uint16_t* key, const std::uint16_t* value) {
    cache_.append(input.layer, id, key, value);
  });
  for (std::size_t s = 0; s < input.batch->ids.size(); ++s) {
    if (input.batch->lengths[s] > 0) update(input.layer, input.batch->ids[s]);
  }
}

kernels::DescribedSide DescribedCudaBackend::device_side(std::int64_t layer, Side side,
                                                         const DescribedSideView& view) const {
  const DescribedPages& pages = cache_.pages(side);
  return {mirror_.pages(layer, side),
          view.page_bytes,
          static_cast<std::int32_t>(pages.bytes()),
          pages.group(),
          static_cast<std::int32_t>(view.ring_rows),
          view.norm_bytes > 0};
}

void DescribedCudaBackend::attend_fast(const Step& step) {
  const AttentionInput& input = step.input;
  const std::int32_t* table = step.table;
  kernels::DescribedAttentionParams p{};
  std::vector<kernels::DescribedSequence> sequences;
  for (const StepToken& token : step.tokens) {
    const DescribedSideView key = cache_.view(input.layer, token.id, Side::kKey),
                            value = cache_.view(input.layer, token.id, Side::kValue);
    kernels::DescribedSequence s{};
    s.sink_key = mirror_.sink(input.layer, token.id, Side::kKey);
    s.sink_value = mirror_.sink(input.layer, token.id, Side::kValue);
    s.ring_key = mirror_.ring(input.layer, token.id, Side::kKey);
    s.ring_value = mirror_.ring(input.layer, token.id, Side::kValue);
    s.key_pages = table, s.value_pages = table + std::ssize(*key.pages);
    table = s.value_pages + std::ssize(*value.pages);
    s.length = static_cast<std::int32_t>(key.tokens);
    s.key_body = static_cast<std::int32_t>(key.body), s.value_body = static_cast<std::int32_t>(value.body);
    sequences.push_back(s);
    const std::int32_t full = std::min(s.key_body, s.value_body) / static_cast<std::int32_t>(kPage);
    p.max_pages = std::max(p.max_pages, full);
    p.max_loose = std::max(p.max_loose, s.length - static_cast<std::int32_t>(kPage) * full);
    p.key = device_side(input.layer, Side::kKey, key), p.value = device_side(input.layer, Side::kValue, value);
  }
  const auto bytes = static_cast<std::int64_t>(sequences.size() * sizeof(kernels::DescribedSequence));
  const at::Tensor device_sequences = at::from_blob(sequences.data(), {bytes}, at::kByte).to(device_);
  p.q = step.q, p.q_coded = step.q_coded, p.sink_logits = step.sink_logits;
  p.plain = step.plain, p.coded = step.coded;
  p.sequences = reinterpret_cast<const kernels::DescribedSequence*>(device_sequences.const_data_ptr());
  p.batch = static_cast<std::int32_t>(step.tokens.size()), p.query_heads = static_cast<std::int32_t>(input.q.size(1));
  p.kv_heads = static_cast<std::int32_t>(kv_heads_), p.head_dim = static_cast<std::int32_t>(head_dim_);
  p.sink = static_cast<std::int32_t>(method_.key.windows.sink);
  p.sliding_window = static_cast<std::int32_t>(input.sliding_window);
  p.scale = static_cast<float>(input.scale), p.soft_cap = static_cast<float>(input.soft_cap);
  const auto workspace = static_cast<std::int64_t>(kernels::described_attention_workspace_bytes(p));
  if (!workspace_.defined() || workspace_.size(0) < workspace) {
    workspace_ = at::empty({workspace}, at::TensorOptions(at::kByte).device(device_));
  }
  p.workspace = workspace_.mutable_data_ptr();
  check_launch(kernels::described_attention(p, current_stream()), "described_attention");
}

void DescribedCudaBackend::attend_general(const Step& step) {
  const std::int64_t layer = step.input.layer;
  const std::int32_t* table = step.table;
  kernels::GeneralAttentionParams p{};
  std::vector<kernels::GeneralSequence> sequences;
  for (const StepToken& token : step.tokens) {
    kernels::GeneralSequence s{};
    for (const Side side : kSides) {
      const DescribedSideView view = cache_.view(layer, token.id, side);
      (side == Side::kKey ? s.key : s.value) =
          mirror_.sequence_side(layer, token.id, side, held(layer, token.id, side), table);
      (side == Side::kKey ? p.key : p.value) =
          general_side(cache_.pages(side), view.norm_bytes > 0, mirror_.pages(layer, side), view.page_bytes);
      table += std::ssize(*view.pages);
      s.length = static_cast<std::int32_t>(view.tokens);
    }
    sequences.push_back(s);
  }
  p.query = step.q, p.query_coded = step.q_coded, p.sink_logits = step.sink_logits;
  p.output = step.plain, p.output_coded = step.coded;
  launcher_.launch(p, step.input, sequences);
}

at::Tensor DescribedCudaBackend::attend(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  const at::Tensor q = input.q.to(device_, at::kFloat).contiguous();
  const at::Tensor k = cache_rows(input.k, nullptr), v = cache_rows(input.v, nullptr);
  const RowBits keys(k), values(v);
  const at::Tensor sinks = input.sinks.defined() ? input.sinks.to(device_, at::kFloat).contiguous() : at::Tensor();
  const at::Tensor coded_q = rotations_[0].defined() ? at::matmul(q, rotations_[0]) : q;
  at::Tensor plain = at::empty_like(q), coded = at::empty_like(q);
  for_each_step(*input.batch, [&](const std::vector<StepToken>& tokens) {
    std::vector<std::int32_t> tables;  // of all sequences, keys and values
    std::vector<std::int64_t> rows;
    for (const StepToken& token : tokens) {
      cache_.append(input.layer, token.id, keys[token.row], values[token.row]);
      update(input.layer, token.id);
      for (const Side side : kSides) {
        const std::vector<std::int32_t>& pages = *cache_.view(input.layer, token.id, side).pages;
        tables.insert(tables.end(), pages.begin(), pages.end());
      }
      rows.push_back(token.row);
    }
    const at::Tensor device_tables = at::tensor(tables, at::kInt).to(device_);
    const at::Tensor index = at::tensor(rows, at::kLong).to(device_);
    const at::Tensor step_q = q.index_select(0, index), step_coded_q = coded_q.index_select(0, index);
    at::Tensor step_plain = at::empty_like(step_q), step_coded = at::empty_like(step_q);
    const Step step{input,
                    tokens,
                    device_tables.const_data_ptr<std::int32_t>(),
                    step_q.const_data_ptr<float>(),
                    step_coded_q.const_data_ptr<float>(),
                    pointer<float>(sinks),
                    step_plain.mutable_data_ptr<float>(),
                    step_coded.mutable_data_ptr<float>()};
    general_ ? attend_general(step) : attend_fast(step);
    plain.index_copy_(0, index, step_plain);
    coded.index_copy_(0, index, step_coded);
  });
  if (rotations_[1].defined()) coded = at::matmul(coded, rotations_[1]);
  return (plain + coded).to(input.q.options());
}

}  // namespace

std::unique_ptr<PagedBackend> make_described_cuda_backend(const KvMethod& method, const ModelConfig& model,
                                                          at::Device device, bool general) {
  return std::make_unique<DescribedCudaBackend>(method, model, device, general);
}

}  // namespace oscar
