#include "collect/finished_layers.h"

#include <ATen/ATen.h>

#include <exception>

#include "collect/accumulator.h"
#include "collect/collect_phases.h"
#include "collect/device_values.h"
#include "collect/pre_rope_moments.h"
#include "collect/residual_energy.h"
#include "collect/unrotation.h"

namespace oscar {
namespace {

constexpr std::uint64_t kMostLayers = 2;  // layers whose sums may be on the device at once

// Computes moments and metrics of a short sequence of ones, and discards them. A GPU loads a kernel at its first
// launch, and libraries of matrix products start slowly: a third of a second, and loading the weights takes several
// times as long.
void warm_up_moments(const ModelConfig& config, const FarPairs& pairs, at::ScalarType dtype, at::Device device) {
  const std::int64_t heads = config.query_heads, kv_heads = config.kv_heads, d = config.head_dim;
  const std::int64_t tokens = 64 + (pairs.enabled ? pairs.sink + pairs.recent : 0);
  const at::TensorOptions options = at::TensorOptions(dtype).device(device);
  const SequenceBatch batch{.ids = {0}, .lengths = {tokens}, .starts = {0}};
  AttentionInput input{.batch = &batch, .q = at::ones({tokens, heads, d}, options)};
  input.k = input.v = at::ones({tokens, kv_heads, d}, options);
  const at::Tensor o_weight = at::eye(d, options).repeat({1, heads});  // the columns of each head form a regular matrix

  LayerMoments out;
  MomentAccumulator moments(kv_heads, d, device);
  moments.add(input.q, at::cat({input.k, input.v}, 1), input.q);
  LateNumber(moments.trace()).value();
  moments.finish(out);
  Unrotation unrotation(common_rope(config), device);
  const Unrotation::Rows& rows = unrotation.rows_of(batch);
  PreRopeAccumulator before(kv_heads, d, device);
  before.begin_layer();
  before.add(input, rows);
  before.finish(out);
  ResidualAccumulator residual(pairs, device);
  residual.begin_layer();
  const at::Tensor hidden = at::ones({tokens, config.hidden}, options);
  residual.add(batch, hidden, hidden);
  residual.finish(out);
  FarPairAccumulator far(heads, kv_heads, d, pairs, device);
  far.begin_layer(o_weight);
  far.add(input, input.q, rows);
  far.finish(out);
  EnergyAccumulator energy(out.q_gram, device);
  energy.add(input.k, input.v);
  out.energy_gram = energy.energy_gram();
  out.wo_gram = output_projection_gram(o_weight, kv_heads, d);
  const at::Tensor some = at::zeros({1}, at::TensorOptions(at::kLong).device(device));
  out.rows_q = at::zeros({1, heads, d}, options.dtype(at::kFloat));
  out.rows_q.index_copy_(0, some, input.q.index_select(0, some).to(at::kFloat));
  LayerCopier().to_cpu(out);
}

}  // namespace

FinishedLayers::FinishedLayers(const WorkDirectory& work, at::Device device, Timeline* timeline)
    : work_(work), device_(device), timeline_(timeline) {}

void FinishedLayers::begin(const ModelConfig& config, const FarPairs& pairs, at::ScalarType dtype) {
  if (!device_.is_cuda()) return;
  jobs_.emplace(device_, kMostLayers);
  jobs_->add(1, [&config, pairs, dtype, device = device_] {
    try {
      warm_up_moments(config, pairs, dtype, device);
    } catch (const std::exception&) {  // the run will fail in the same way and say where
    }
  });
}

void FinishedLayers::add(std::int64_t layer, LayerMoments moments) {
  LayerMoments& held = unsaved_[layer] = std::move(moments);  // its address stays valid while other entries come and go
  if (jobs_ && deferred_) return jobs_->add(1, [this, &held] { copier_.to_cpu(held); });
  copier_.to_cpu(held);
  if (!deferred_) save();
}

void FinishedLayers::wait() {
  const Timeline::Phase finishing(timeline_, phase::kMoments);
  if (jobs_) jobs_->wait();
}

void FinishedLayers::save() {
  wait();
  const Timeline::Phase saving(timeline_, phase::kSaving);
  for (const auto& [layer, moments] : unsaved_) work_.save_layer(layer, moments);
  unsaved_.clear();
}

LayerMoments FinishedLayers::take(std::int64_t layer) {
  wait();
  const auto unsaved = unsaved_.find(layer);
  LayerMoments moments = unsaved != unsaved_.end() ? std::move(unsaved->second) : work_.load_layer(layer);
  if (unsaved != unsaved_.end()) unsaved_.erase(unsaved);
  return moments;
}

}  // namespace oscar
