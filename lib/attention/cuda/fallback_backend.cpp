// The decode path on a GPU for caches that the fast kernels do not support. This file keeps windows and page tables
// (device_tiers.h); kernels code rows (page_writer.h) and run the attention (attention_launch.h). A token's keys and
// values do not depend on the attention of earlier tokens in this layer. So all rows of a call are coded at once, and
// each query reads the cache as it was at its position.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>

#include "attention/begin_step.h"
#include "attention/cache_factory.h"
#include "attention/cuda/attention_launch.h"
#include "attention/cuda/device_launch.h"
#include "attention/cuda/device_phases.h"
#include "attention/cuda/device_tiers.h"
#include "attention/cuda/finite_watch.h"
#include "attention/cuda/page_writer.h"
#include "attention/cuda/repeated_upload.h"
#include "attention/paged_backend.h"

namespace oscar {
namespace {

constexpr std::array<Side, 2> kSides{Side::kKey, Side::kValue};

std::size_t at_side(Side side) { return side == Side::kKey ? 0 : 1; }

class FallbackBackend : public PagedBackend {
 public:
  FallbackBackend(const KvMethod& method, const ModelConfig& model, at::Device device);
  at::Tensor attend(const AttentionInput& input) override;
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override { tiers_.release(sequence); }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    return tiers_.tokens(layer, sequence);
  }
  StoredPages stored(std::int64_t layer, std::int64_t sequence, Side side) const override;
  std::int64_t pages_in_use() const override { return tiers_.pages_in_use(); }
  std::uint64_t allocated_bytes() const override { return tiers_.bytes(); }

 private:
  const CachePages& pages(std::int64_t layer, Side side) const {
    return *spec_.sides[at_side(side)].pages[static_cast<std::size_t>(layer)];
  }
  const float* sigma(std::int64_t layer, Side side);
  void add(const AttentionInput& input, const at::Tensor& keys, const at::Tensor& values);
  void check_finite(const AttentionInput& input) const;
  std::vector<kernels::FallbackSequence> views(const AttentionInput& input);
  void attend_rows(const AttentionInput& input, std::int64_t first, const std::vector<kernels::FallbackSequence>& views,
                   const BegunStep& step);

  const KvMethod& method_;
  KvMethod on_device_;  // with its transforms on the device
  at::Device device_;
  KvCacheSpec spec_;
  DeviceTiers tiers_;
  DevicePhases phases_;
  std::array<std::unique_ptr<PageWriter>, 2> writers_;
  FallbackLauncher launcher_;
  std::vector<std::array<at::Tensor, 2>> sigma_;  // [layers] of [Hkv, 4]
  FiniteWatch finite_;
  RepeatedUpload<std::int32_t> tables_;
};

FallbackBackend::FallbackBackend(const KvMethod& method, const ModelConfig& model, at::Device device)
    : method_(method),
      on_device_(method),
      device_(device),
      spec_(cache_spec(method, model)),
      tiers_(spec_, device),
      phases_(method.rope_phases, device),
      launcher_(device),
      sigma_(static_cast<std::size_t>(model.kv_layers())),
      finite_(model.kv_layers(), spec_.kv_heads, device),
      tables_(device) {
  for (const Side side : kSides) {
    writers_[at_side(side)] = make_page_writer(method, spec_, side, phases_, device);
  }
  for (LayerTransform& layer : on_device_.layers) {
    for (SideTransform* side : {&layer.key, &layer.value}) {
      for (at::Tensor* x : {&side->forward, &side->query_side, &side->inverse, &side->mean}) {
        if (x->defined()) *x = x->to(device, at::kFloat).contiguous();
      }
    }
  }
}

const float* FallbackBackend::sigma(std::int64_t layer, Side side) {
  const float* source = pages(layer, side).format().sigma;
  if (source == nullptr) return nullptr;
  at::Tensor& x = sigma_[static_cast<std::size_t>(layer)][at_side(side)];
  // from_blob does not write through its pointer.
  if (!x.defined()) x = at::from_blob(const_cast<float*>(source), {spec_.kv_heads, kBands}, at::kFloat).to(device_);
  return x.const_data_ptr<float>();
}

// Appends the new tokens of every sequence to the windows, and codes tokens that leave the windows.
void FallbackBackend::add(const AttentionInput& input, const at::Tensor& keys, const at::Tensor& values) {
  if (input.batch->tokens() == 0) return;
  for (const Side side : kSides) {
    PageWriter& writer = *writers_[at_side(side)];
    const at::Tensor rows = writer.window_rows(input.layer, side == Side::kKey ? keys : values, *input.batch);
    const std::vector<kernels::PageRun> runs = tiers_.append(input.layer, *input.batch, side, rows);
    if (runs.empty()) continue;
    writer.write(input.layer, tiers_.rows(input.layer, side), runs, tiers_.pool(input.layer, side),
                 finite_.of(input.layer, side));
  }
}

// Checks this layer and those before it. For single tokens it checks once per step, because the check waits for the
// GPU.
void FallbackBackend::check_finite(const AttentionInput& input) const {
  const bool one_by_one = input.batch->tokens() <= std::ssize(input.batch->ids);
  if (one_by_one && input.layer + 1 < static_cast<std::int64_t>(sigma_.size())) return;
  finite_.check(0, input.layer);
}

// For each token of the call: the cache as it is once the token has been added.
std::vector<kernels::FallbackSequence> FallbackBackend::views(const AttentionInput& input) {
  const SequenceBatch& batch = *input.batch;
  std::vector<std::int32_t> ids;  // page ids of each sequence, keys then values
  for (std::size_t s = 0; s < batch.ids.size(); ++s) {
    for (const Side side : kSides) {
      if (batch.lengths[s] == 0) continue;
      const std::vector<std::int32_t>& table = tiers_.table(batch.ids[s], side);
      ids.insert(ids.end(), table.begin(), table.end());
    }
  }
  const std::int32_t* table = tables_(ids);
  std::vector<kernels::FallbackSequence> views;
  for (std::size_t s = 0; s < batch.ids.size(); ++s) {
    if (batch.lengths[s] == 0) continue;
    const std::int64_t id = batch.ids[s];
    const std::array<const std::int32_t*, 2> of{table, table + tiers_.table(id, Side::kKey).size()};
    table = of[1] + tiers_.table(id, Side::kValue).size();
    for (std::int64_t i = 1; i <= batch.lengths[s]; ++i) {
      const std::int64_t tokens = batch.starts[s] + i;
      views.push_back({tiers_.view(input.layer, id, Side::kKey, tokens, of[0]),
                       tiers_.view(input.layer, id, Side::kValue, tokens, of[1]), static_cast<std::int32_t>(tokens)});
    }
  }
  return views;
}

at::Tensor FallbackBackend::attend(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  BegunStep step = begin_step(
      method_, input, device_, Rotation::kQueriesWithPositions,
      [&](std::int64_t id) { return tiers_.tokens(input.layer, id); }, &on_device_);
  add(input, step.keys, step.values);
  const std::vector<kernels::FallbackSequence> all = views(input);
  std::int32_t longest = 1;
  for (const kernels::FallbackSequence& view : all) longest = std::max(longest, view.length);
  // The workspace of a launch grows with the number and the length of its queries.
  const std::int64_t most = std::clamp<std::int64_t>((std::int64_t{1} << 20) / longest, 1, 512);
  for (std::int64_t first = 0; first < std::ssize(all); first += most) {
    const auto begin = all.begin() + first;
    attend_rows(input, first, {begin, begin + std::min(most, std::ssize(all) - first)}, step);
  }
  tiers_.trim(input.layer);
  check_finite(input);
  return model_outputs(on_device_, input, step);
}

// Attends with queries [first, first + views.size()) of the call.
void FallbackBackend::attend_rows(const AttentionInput& input, std::int64_t first,
                                  const std::vector<kernels::FallbackSequence>& views, const BegunStep& step) {
  const auto from = [&](const at::Tensor& x) {
    return x.defined() ? x.const_data_ptr<float>() + first * x.stride(0) : nullptr;
  };
  const auto to = [&](const at::Tensor& x) {
    return x.defined() ? x.mutable_data_ptr<float>() + first * x.stride(0) : nullptr;
  };
  kernels::FallbackAttentionParams p{};
  p.query = from(step.q), p.position_query = from(step.positions);
  p.logit_shift = from(step.shift), p.sink_logits = pointer<float>(step.sinks);
  p.output = to(step.output), p.weight_sum = to(step.weight_sum);
  if (step.positions.defined()) {
    std::int64_t longest = 1;
    for (const kernels::FallbackSequence& view : views) longest = std::max<std::int64_t>(longest, view.length);
    p.rope_phases = phases_.rows(longest);
  }
  for (const Side side : kSides) {
    const at::Tensor& pool = tiers_.pool(input.layer, side);
    (side == Side::kKey ? p.key : p.value) =
        general_side(pages(input.layer, side), side, pointer<std::uint8_t>(pool), sigma(input.layer, side));
  }
  launcher_.launch(p, input, views);
}

void FallbackBackend::append(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  add(input, kernel_rows(input.k, device_), kernel_rows(input.v, device_));
  tiers_.trim(input.layer);
  check_finite(input);
}

// Copies from the memory that the kernel reads.
StoredPages FallbackBackend::stored(std::int64_t layer, std::int64_t sequence, Side side) const {
  if (tiers_.tokens(layer, sequence) == 0) return {};
  StoredPages stored{tiers_.coded(layer, sequence, side), {}};
  if (stored.tokens == 0) return stored;
  const std::int64_t page = pages(layer, side).tokens(), count = (stored.tokens + page - 1) / page;
  const std::vector<std::int32_t>& table = tiers_.table(sequence, side);
  const std::vector<std::int64_t> ids(table.begin(), table.begin() + count);
  const at::Tensor copy =
      tiers_.pool(layer, side).index_select(0, at::tensor(ids, at::kLong).to(device_)).to(at::kCPU).contiguous();
  const auto* bytes = copy.const_data_ptr<std::uint8_t>();
  stored.pages.assign(bytes, bytes + copy.nbytes());
  return stored;
}

}  // namespace

std::unique_ptr<PagedBackend> make_fallback_backend(const KvMethod& method, const ModelConfig& model,
                                                    at::Device device) {
  return std::make_unique<FallbackBackend>(method, model, device);
}

}  // namespace oscar
