// How long collecting takes on this machine, for the dry run of `oscar-fit --model`; fit_time.h adds the phases of a
// fit. Phases that take no notable time are not listed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "collect/collect.h"
#include "model/layer_timer.h"

namespace oscar {

struct PhaseSeconds {
  std::string name;  // as -v reports it (collect/collect_phases.h, fit/fit_phases.h)
  double seconds = 0.0;
};

struct RunTime {
  std::int64_t probe_tokens = 0;     // of the longer timed run; 0: the shards are absent, so that no layer can be timed
  std::vector<PhaseSeconds> phases;  // in the order of a run
  std::vector<PhaseSeconds> other_ways{};  // options of another whole run, and its time

  double seconds() const;
  std::string text() const;      // lines
  void add_to(Json& out) const;  // "seconds", "seconds_from", "phases" and "other_ways"
};

// The sums of the collector, timed in each kind of layer.
class CollectProbe {
 public:
  CollectProbe(const Checkpoint& checkpoint, const CollectOptions& options);

  LayerTimer& layers() { return layers_; }
  double forward(const std::vector<std::int64_t>& lengths) const;  // of all layers, for sequences of these lengths
  // The phases from reading the weights to the metrics of pairs outside the windows.
  std::vector<PhaseSeconds> phases(const TokenPlan& plan);

 private:
  std::vector<double> observe(std::int64_t layer, std::int64_t tokens);
  double of(const LayerTimer::Rates& rates, const std::vector<std::int64_t>& lengths) const;

  const CollectOptions& options_;
  LayerTimer layers_;
  LayerTimer::Rates forward_, moments_, far_;
};

}  // namespace oscar
