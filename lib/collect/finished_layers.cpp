#include "collect/finished_layers.h"

#include <exception>
#include <utility>

#include "collect/collect_phases.h"
#include "collect/collect_report.h"
#include "collect/moment_warm_up.h"

namespace oscar {
namespace {

constexpr std::uint64_t kMostLayers = 2;  // layers whose sums may be on the device at once

}  // namespace

FinishedLayers::FinishedLayers(const WorkDirectory& work, std::vector<LayerReport>& reports, at::Device device,
                               Timeline* timeline)
    : work_(work), reports_(reports), device_(device), timeline_(timeline) {}

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
  if (jobs_ && deferred_) return jobs_->add(1, [this, layer, &held] { complete(layer, held); });
  {
    const Timeline::Phase spectra(timeline_, phase::kSpectra);
    complete(layer, held);
  }
  if (!deferred_) save();
}

void FinishedLayers::complete(std::int64_t layer, LayerMoments& moments) {
  copier_.to_cpu(moments);
  LayerReport& report = reports_[static_cast<std::size_t>(layer)];
  describe_layer(moments, layer, report);
  print_layer(report, std::ssize(reports_));
  if (told_) told_(layer, moments);
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
  if (reports_[static_cast<std::size_t>(layer)].q_trace == 0) {
    const Timeline::Phase spectra(timeline_, phase::kSpectra);
    describe_layer(moments, layer, reports_[static_cast<std::size_t>(layer)]);
  }
  return moments;
}

}  // namespace oscar
