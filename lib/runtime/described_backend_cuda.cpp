// The decode path of KIVI and OScaR on a GPU: rows are coded on the CPU by DescribedCache, what changed is copied to
// pages of the same bytes in device memory, and the attention over them runs there (kernels/described_attention.h).
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/described_attention.h"
#include "methods/hadamard_rows.h"
#include "runtime/basis.h"
#include "runtime/batch_steps.h"
#include "runtime/described_cache.h"
#include "runtime/device_launch.h"
#include "runtime/paged_backend.h"

namespace oscar {
namespace {

constexpr std::int64_t kPage = kDescribedPageTokens;

class DescribedCudaBackend : public PagedBackend {
 public:
  DescribedCudaBackend(const KvMethod& method, const ModelConfig& model, at::Device device)
      : method_(method.engine->description()),
        device_(device),
        kv_heads_(model.kv_heads),
        head_dim_(model.head_dim),
        cache_(method_, model.layers, model.kv_heads, model.head_dim),
        pools_(static_cast<std::size_t>(model.layers)) {
    for (const Side side : kSides) rotations_[at(side)] = rotation(side_of(side));
  }

  at::Tensor attend(const AttentionInput& input) override;
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override {
    cache_.release(sequence);
    std::erase_if(windows_, [&](const auto& entry) { return entry.first.second == sequence; });
  }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    return cache_.tokens(layer, sequence);
  }
  StoredPages stored(std::int64_t, std::int64_t) const override {
    throw std::logic_error("a method of another paper has pages of its own: use described()");
  }
  std::uint64_t allocated_bytes() const override;
  const DescribedCache* described_cache() const override { return &cache_; }

 private:
  static constexpr std::array<Side, 2> kSides{Side::kKey, Side::kValue};
  static std::size_t at(Side side) { return side == Side::kKey ? 0 : 1; }
  // BF16 rows of one layer and sequence on the device, [rows, Hkv, d], keys and values.
  struct Windows {
    std::array<at::Tensor, 2> sink, ring;
  };

  const SideDescription& side_of(Side side) const { return side == Side::kKey ? method_.key : method_.value; }
  at::Tensor rotation(const SideDescription& side) const;
  void append_token(std::int64_t layer, std::int64_t id, const std::uint16_t* key, const std::uint16_t* value);
  void copy_side(std::int64_t layer, std::int64_t id, Side side, std::int64_t coded_before);
  kernels::DescribedSide device_side(std::int64_t layer, Side side, const DescribedSideView& view) const;

  const MethodDescription& method_;
  at::Device device_;
  std::int64_t kv_heads_, head_dim_;
  DescribedCache cache_;
  std::array<at::Tensor, 2> rotations_;                               // [d, d], undefined: none
  std::vector<std::array<at::Tensor, 2>> pools_;                      // [layers] bytes of pages, [pages, page bytes]
  std::map<std::pair<std::int64_t, std::int64_t>, Windows> windows_;  // of (layer, sequence)
  at::Tensor workspace_;
};

at::Tensor DescribedCudaBackend::rotation(const SideDescription& side) const {
  if (side.basis != CacheBasis::kHadamard) return {};
  at::Tensor h = at::eye(head_dim_, at::kFloat);
  hadamard_rows(h.mutable_data_ptr<float>(), head_dim_, head_dim_, head_dim_, hadamard_order_of(side, head_dim_));
  return h.to(device_);
}

// Copies what the newest token has changed: its row, and the pages of tokens coded since `coded_before`.
void DescribedCudaBackend::copy_side(std::int64_t layer, std::int64_t id, Side side, std::int64_t coded_before) {
  const DescribedSideView view = cache_.view(layer, id, side);
  const auto rows_of = [&](std::int64_t rows) {
    return at::zeros({rows, kv_heads_, head_dim_}, at::TensorOptions(at::kBFloat16).device(device_));
  };
  Windows& windows = windows_[{layer, id}];
  const std::int64_t position = view.tokens - 1, width = kv_heads_ * head_dim_;
  const bool in_sink = position < view.sink_rows;
  at::Tensor& rows = in_sink ? windows.sink[at(side)] : windows.ring[at(side)];
  if (!rows.defined()) rows = rows_of(in_sink ? view.sink_rows : view.ring_rows);
  const std::int64_t row = in_sink ? position : (position - view.sink_rows) % view.ring_rows;
  // from_blob does not write through its pointer.
  auto* source = const_cast<std::uint16_t*>((in_sink ? *view.sink : *view.ring).data()) + row * width;
  rows[row].copy_(at::from_blob(source, {kv_heads_, head_dim_}, at::kBFloat16));
  if (view.body == coded_before) return;

  at::Tensor& pool = pools_[static_cast<std::size_t>(layer)][at(side)];
  const std::int64_t held = pool.defined() ? pool.size(0) : 0;
  if (view.pool_pages > held) {
    at::Tensor larger = at::zeros({std::max(view.pool_pages, held + held / 8), view.page_bytes},
                                  at::TensorOptions(at::kByte).device(device_));
    if (held > 0) larger.narrow(0, 0, held).copy_(pool);
    pool = larger;
  }
  for (std::int64_t page = coded_before / kPage; page <= (view.body - 1) / kPage; ++page) {
    const std::int64_t index = (*view.pages)[static_cast<std::size_t>(page)];
    auto* bytes = const_cast<std::uint8_t*>(view.pool) + index * view.page_bytes;
    pool[index].copy_(at::from_blob(bytes, {view.page_bytes}, at::kByte));
  }
}

void DescribedCudaBackend::append_token(std::int64_t layer, std::int64_t id, const std::uint16_t* key,
                                        const std::uint16_t* value) {
  std::array<std::int64_t, 2> coded{};
  for (const Side side : kSides) {
    if (cache_.tokens(layer, id) > 0) coded[at(side)] = cache_.view(layer, id, side).body;
  }
  cache_.append(layer, id, key, value);
  for (const Side side : kSides) copy_side(layer, id, side, coded[at(side)]);
}

void DescribedCudaBackend::append(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  const at::Tensor k = cache_rows(input.k, nullptr), v = cache_rows(input.v, nullptr);
  for_each_row(*input.batch, k, v, [&](std::int64_t id, const std::uint16_t* key, const std::uint16_t* value) {
    append_token(input.layer, id, key, value);
  });
}

kernels::DescribedSide DescribedCudaBackend::device_side(std::int64_t layer, Side side,
                                                         const DescribedSideView& view) const {
  const DescribedPages& pages = cache_.pages(side);
  const at::Tensor& pool = pools_[static_cast<std::size_t>(layer)][at(side)];
  return {pool.defined() ? pool.const_data_ptr<std::uint8_t>() : nullptr,
          view.page_bytes,
          static_cast<std::int32_t>(pages.bytes()),
          pages.group(),
          static_cast<std::int32_t>(view.ring_rows),
          view.norm_bytes > 0};
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
    std::int64_t longest = 0;
    for (const StepToken& token : tokens) {
      append_token(input.layer, token.id, keys[token.row], values[token.row]);
      for (const Side side : kSides) {
        const std::vector<std::int32_t>& pages = *cache_.view(input.layer, token.id, side).pages;
        tables.insert(tables.end(), pages.begin(), pages.end());
      }
      rows.push_back(token.row);
      longest = std::max(longest, token.position + 1);
    }
    const at::Tensor device_tables = at::tensor(tables, at::kInt).to(device_);
    const auto* table = device_tables.const_data_ptr<std::int32_t>();

    kernels::DescribedAttentionParams p{};
    std::vector<kernels::DescribedSequence> sequences;
    for (const StepToken& token : tokens) {
      const Windows& windows = windows_[{input.layer, token.id}];
      const auto row_bits = [](const at::Tensor& x) {
        return x.defined() ? reinterpret_cast<const std::uint16_t*>(x.const_data_ptr<at::BFloat16>()) : nullptr;
      };
      const DescribedSideView key = cache_.view(input.layer, token.id, Side::kKey),
                              value = cache_.view(input.layer, token.id, Side::kValue);
      kernels::DescribedSequence s{};
      s.sink_key = row_bits(windows.sink[0]), s.sink_value = row_bits(windows.sink[1]);
      s.ring_key = row_bits(windows.ring[0]), s.ring_value = row_bits(windows.ring[1]);
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
    const at::Tensor index = at::tensor(rows, at::kLong).to(device_);
    const at::Tensor step_q = q.index_select(0, index), step_coded_q = coded_q.index_select(0, index);
    at::Tensor step_plain = at::empty_like(step_q), step_coded = at::empty_like(step_q);
    p.q = step_q.const_data_ptr<float>(), p.q_coded = step_coded_q.const_data_ptr<float>();
    p.plain = step_plain.mutable_data_ptr<float>(), p.coded = step_coded.mutable_data_ptr<float>();
    p.sequences = reinterpret_cast<const kernels::DescribedSequence*>(device_sequences.const_data_ptr());
    p.sink_logits = pointer<float>(sinks);
    p.batch = static_cast<std::int32_t>(tokens.size()), p.query_heads = static_cast<std::int32_t>(q.size(1));
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
    plain.index_copy_(0, index, step_plain);
    coded.index_copy_(0, index, step_coded);
  });
  if (rotations_[1].defined()) coded = at::matmul(coded, rotations_[1]);
  return (plain + coded).to(input.q.options());
}

std::uint64_t DescribedCudaBackend::allocated_bytes() const {
  std::uint64_t bytes = 0;
  const auto add = [&](const at::Tensor& x) { bytes += x.defined() ? x.nbytes() : 0; };
  for (const auto& sides : pools_) std::for_each(sides.begin(), sides.end(), add);
  for (const auto& [place, windows] : windows_) {
    for (const auto* rows : {&windows.sink, &windows.ring}) std::for_each(rows->begin(), rows->end(), add);
  }
  return bytes;
}

}  // namespace

std::unique_ptr<PagedBackend> make_described_cuda_backend(const KvMethod& method, const ModelConfig& model,
                                                          at::Device device) {
  return std::make_unique<DescribedCudaBackend>(method, model, device);
}

}  // namespace oscar
