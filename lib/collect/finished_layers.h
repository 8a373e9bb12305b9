// The sums of finished layers on their way into files. On a GPU they are copied to the CPU while the next layer runs.
// Deferred sums are written only when the run's state is saved, so a run that ends earlier writes no file that it would
// delete again.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/timeline.h"
#include "collect/collect_work.h"
#include "collect/device_values.h"
#include "collect/far_pairs.h"
#include "model/background_jobs.h"

namespace oscar {

class FinishedLayers {
 public:
  // The references must outlive this object.
  FinishedLayers(const WorkDirectory& work, at::Device device, Timeline* timeline);

  // On a GPU, a thread meanwhile loads the kernels of moments and of pairs outside the windows.
  void begin(const ModelConfig& config, const FarPairs& pairs, at::ScalarType dtype);
  void defer(bool deferred) { deferred_ = deferred; }
  bool deferred() const { return deferred_; }

  void add(std::int64_t layer, LayerMoments moments);  // moments on the device
  void wait();                                         // until all are on the CPU
  void save();                                         // writes the layers that are in no file
  LayerMoments take(std::int64_t layer);               // a layer that this run or an earlier one added

 private:
  const WorkDirectory& work_;
  at::Device device_;
  Timeline* timeline_;
  bool deferred_ = false;
  std::map<std::int64_t, LayerMoments> unsaved_;  // layers that are in no file
  LayerCopier copier_;
  std::optional<BackgroundJobs> jobs_;  // the last member: the jobs use the others
};

}  // namespace oscar
