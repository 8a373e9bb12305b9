// The sums of layers that are done, on their way into files. On a GPU they come to the CPU while the next layer is at
// work. Deferred, they are written when the state of the run is saved; what a run that ends before would have to delete
// again is not written.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/timeline.h"
#include "model/background_jobs.h"
#include "statistics/collect.h"
#include "statistics/collect_work.h"
#include "statistics/far_pairs.h"
#include "statistics/layer_copy.h"

namespace oscar {

class FinishedLayers {
 public:
  // reports: [layers], gets what the sums say of each; longer-lived than this, as all else that is referred to.
  FinishedLayers(const WorkDirectory& work, std::vector<LayerReport>& reports, at::Device device, Timeline* timeline);

  // On a GPU a thread loads the kernels of moments and far pairs meanwhile (moment_warm_up.h).
  void begin(const ModelConfig& config, const FarPairs& pairs, at::ScalarType dtype);
  void defer(bool deferred) { deferred_ = deferred; }
  bool deferred() const { return deferred_; }
  // Called for each layer when it is on the CPU, where layers are finished beside the next one on their thread.
  void when_done(std::function<void(std::int64_t, const LayerMoments&)> told) { told_ = std::move(told); }

  void add(std::int64_t layer, LayerMoments moments);  // as the observer leaves them, on the device; prints a line
  void wait();                                         // until all are on the CPU
  void save();                                         // those that are in no file
  LayerMoments take(std::int64_t layer);               // a layer that was added, by this run or by one before

 private:
  void complete(std::int64_t layer, LayerMoments& moments);

  const WorkDirectory& work_;
  std::vector<LayerReport>& reports_;
  at::Device device_;
  Timeline* timeline_;
  bool deferred_ = false;
  std::map<std::int64_t, LayerMoments> unsaved_;  // that are in no file
  LayerCopier copier_;
  std::function<void(std::int64_t, const LayerMoments&)> told_;
  std::optional<BackgroundJobs> jobs_;  // the last member: they use the others
};

}  // namespace oscar
