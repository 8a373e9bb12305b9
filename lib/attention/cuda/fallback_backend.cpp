// The decode path on a GPU for caches that the fast kernels do not write: rows are coded on the CPU by KvCache, what
// changed is copied to device memory (device_mirror.h), and the attention over it runs there (attention_launch.h).
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>

#include "attention/begin_step.h"
#include "attention/cache_factory.h"
#include "attention/cuda/attention_launch.h"
#include "attention/cuda/device_launch.h"
#include "attention/cuda/device_mirror.h"
#include "attention/cuda/device_phases.h"
#include "attention/paged_backend.h"

namespace oscar {
namespace {

constexpr std::array<Side, 2> kSides{Side::kKey, Side::kValue};

std::size_t at_side(Side side) { return side == Side::kKey ? 0 : 1; }

class FallbackBackend : public PagedBackend {
 public:
  FallbackBackend(const KvMethod& method, const ModelConfig& model, at::Device device, bool general);
  at::Tensor attend(const AttentionInput& input) override;
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override { cache_.release(sequence), mirror_.release(sequence); }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    return cache_.tokens(layer, sequence);
  }
  StoredPages stored(std::int64_t layer, std::int64_t sequence, Side side) const override;
  std::int64_t pages_in_use() const override { return cache_.pages_in_use(); }
  std::uint64_t allocated_bytes() const override { return mirror_.bytes(); }

 private:
  const CachePages& pages(std::int64_t layer, Side side) const {
    return *spec_.sides[at_side(side)].pages[static_cast<std::size_t>(layer)];
  }
  Side pool_of(Side side) const { return spec_.shared_pages ? Side::kKey : side; }
  void update(std::int64_t layer, std::int64_t id) {
    for (const Side side : kSides) {
      mirror_.update(layer, id, side, cache_.view(layer, id, side), pool_of(side) == side);
    }
  }
  at::Tensor rotation(Side side) const;
  const float* sigma(std::int64_t layer, Side side);
  void attend_step(const AttentionInput& input, const std::vector<StepToken>& tokens, const at::Tensor& coded_q,
                   BegunStep& step, at::Tensor& coded);

  const KvMethod& method_;
  KvMethod on_device_;  // with its transforms there
  at::Device device_;
  KvCacheSpec spec_;
  KvCache cache_;
  DeviceMirror mirror_;  // shared pages are with the keys
  std::unique_ptr<AttentionLauncher> launcher_;
  std::array<at::Tensor, 2> rotations_;           // [d, d] into the basis of the codes, the same in all layers; or none
  std::vector<std::array<at::Tensor, 2>> sigma_;  // [layers] of [Hkv, 4]
  DevicePhases phases_;
};

FallbackBackend::FallbackBackend(const KvMethod& method, const ModelConfig& model, at::Device device, bool general)
    : method_(method),
      on_device_(method),
      device_(device),
      spec_(cache_spec(method, model)),
      cache_(spec_),
      mirror_(model.kv_layers(), model.kv_heads, model.head_dim, device),
      sigma_(static_cast<std::size_t>(model.kv_layers())),
      phases_(method.rope_phases, device) {
  if (general) {
    launcher_ = std::make_unique<FallbackLauncher>(device);
  } else {
    launcher_ = std::make_unique<KiviLauncher>(device, spec_.sides[0].windows.sink);
  }
  for (const Side side : kSides) rotations_[at_side(side)] = rotation(side);
  for (LayerTransform& layer : on_device_.layers) {
    for (SideTransform* side : {&layer.key, &layer.value}) {
      for (at::Tensor* x : {&side->forward, &side->query_side, &side->inverse, &side->mean}) {
        if (x->defined()) *x = x->to(device, at::kFloat).contiguous();
      }
    }
  }
}

at::Tensor FallbackBackend::rotation(Side side) const {
  if (!pages(0, side).rotates()) return {};
  at::Tensor rows = at::eye(spec_.head_dim, at::kFloat);
  pages(0, side).to_code_basis(rows.mutable_data_ptr<float>(), spec_.head_dim);
  return rows.to(device_);
}

const float* FallbackBackend::sigma(std::int64_t layer, Side side) {
  const float* source = pages(layer, side).format().sigma;
  if (source == nullptr) return nullptr;
  at::Tensor& x = sigma_[static_cast<std::size_t>(layer)][at_side(side)];
  // from_blob does not write through its pointer.
  if (!x.defined()) x = at::from_blob(const_cast<float*>(source), {spec_.kv_heads, kBands}, at::kFloat).to(device_);
  return x.const_data_ptr<float>();
}

at::Tensor FallbackBackend::attend(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  BegunStep step = begin_step(
      method_, input, device_, Rotation::kQueriesAndRows,
      [&](std::int64_t id) { return cache_.tokens(input.layer, id); }, &on_device_);
  const RowBits keys(step.keys), values(step.values);
  // Sides with pages of their own: coded tokens may have another basis, and sums over them stay apart.
  at::Tensor coded_q, coded;
  if (!spec_.shared_pages) {
    coded_q = rotations_[0].defined() ? at::matmul(step.q, rotations_[0]) : step.q;
    coded = at::empty_like(step.q);
  }
  for_each_step(*input.batch, [&](const std::vector<StepToken>& tokens) {
    append_step(cache_, input.layer, tokens, keys, values);
    for (const StepToken& token : tokens) update(input.layer, token.id);
    attend_step(input, tokens, coded_q, step, coded);
  });
  if (coded.defined()) {
    // The transform is its own inverse and symmetric.
    step.output = step.output + (rotations_[1].defined() ? at::matmul(coded, rotations_[1]) : coded);
  }
  return model_outputs(on_device_, input, step);
}

// The newest token of each of these sequences over the copy of its cache.
void FallbackBackend::attend_step(const AttentionInput& input, const std::vector<StepToken>& tokens,
                                  const at::Tensor& coded_q, BegunStep& step, at::Tensor& coded) {
  std::vector<std::int64_t> rows;
  std::vector<std::int32_t> tables;  // page ids: of each sequence, keys then values
  for (const StepToken& token : tokens) {
    rows.push_back(token.row);
    for (const Side side : kSides) {
      const SideView view = cache_.view(input.layer, token.id, side);
      tables.insert(tables.end(), view.table, view.table + view.page_count());
    }
  }
  const at::Tensor device_tables = at::tensor(tables, at::kInt).to(device_, /*non_blocking=*/true);
  const std::int32_t* table = device_tables.const_data_ptr<std::int32_t>();
  std::vector<kernels::FallbackSequence> sequences;
  for (const StepToken& token : tokens) {
    kernels::FallbackSequence s{};
    for (const Side side : kSides) {
      const SideView view = cache_.view(input.layer, token.id, side);
      (side == Side::kKey ? s.key : s.value) = mirror_.sequence_side(input.layer, token.id, side, view, table);
      s.length = static_cast<std::int32_t>(view.tokens());
      table += view.page_count();
    }
    sequences.push_back(s);
  }

  // A call of one step takes its rows as they are.
  const bool whole = std::ssize(rows) == step.q.size(0) && std::is_sorted(rows.begin(), rows.end());
  const at::Tensor index = whole ? at::Tensor() : at::tensor(rows, at::kLong).to(device_);
  const auto select = [&](const at::Tensor& x) { return x.defined() && !whole ? x.index_select(0, index) : x; };
  const auto room = [&](const at::Tensor& x) {
    if (!x.defined() || whole) return x;
    std::vector<std::int64_t> sizes = x.sizes().vec();
    sizes[0] = std::ssize(rows);
    return at::empty(sizes, x.options());
  };
  const auto written = [](at::Tensor& x) { return x.defined() ? x.mutable_data_ptr<float>() : nullptr; };
  const at::Tensor q = select(step.q), step_coded_q = select(coded_q), positions = select(step.positions),
                   shift = select(step.shift);
  at::Tensor step_output = room(step.output), step_coded = room(coded), sum = room(step.weight_sum);
  kernels::FallbackAttentionParams p{};
  p.query = pointer<float>(q), p.query_coded = pointer<float>(step_coded_q);
  p.position_query = pointer<float>(positions);
  p.rope_phases = step.rope_phases.defined() ? phases_.rows(step.rope_phases.size(0)) : nullptr;
  p.logit_shift = pointer<float>(shift), p.sink_logits = pointer<float>(step.sinks);
  p.output = written(step_output), p.output_coded = written(step_coded), p.weight_sum = written(sum);
  for (const Side side : kSides) {
    (side == Side::kKey ? p.key : p.value) = general_side(
        pages(input.layer, side), side, mirror_.pages(input.layer, pool_of(side)), sigma(input.layer, side));
  }
  launcher_->launch(p, input, sequences);
  if (whole) return;
  step.output.index_copy_(0, index, step_output);
  if (coded.defined()) coded.index_copy_(0, index, step_coded);
  if (sum.defined()) step.weight_sum.index_copy_(0, index, sum);
}

void FallbackBackend::append(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  append_batch(cache_, input.layer, *input.batch, new_rows(method_, input));
  for (std::size_t s = 0; s < input.batch->ids.size(); ++s) {
    if (input.batch->lengths[s] > 0) update(input.layer, input.batch->ids[s]);
  }
}

// From the memory that the kernel reads.
StoredPages FallbackBackend::stored(std::int64_t layer, std::int64_t sequence, Side side) const {
  if (cache_.tokens(layer, sequence) == 0) return {};
  const SideView view = cache_.view(layer, sequence, side);
  StoredPages stored{view.body, {}};
  if (view.body == 0) return stored;
  const std::vector<std::int64_t> ids(view.table, view.table + view.page_count());
  const at::Tensor copy = mirror_.pool(layer, pool_of(side))
                              .index_select(0, at::tensor(ids, at::kLong).to(device_))
                              .to(at::kCPU)
                              .contiguous();
  const auto* bytes = copy.const_data_ptr<std::uint8_t>();
  stored.pages.assign(bytes, bytes + copy.nbytes());
  return stored;
}

}  // namespace

std::unique_ptr<PagedBackend> make_fallback_backend(const KvMethod& method, const ModelConfig& model, at::Device device,
                                                    bool general) {
  return std::make_unique<FallbackBackend>(method, model, device, general);
}

}  // namespace oscar
