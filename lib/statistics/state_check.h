// Are the tensors of a collect work directory those of the run that continues? Checked before any of them is used:
// LibTorch would broadcast a sum of one element without a word.
#pragma once

#include <cstdint>
#include <string>

#include "statistics/statistics.h"

namespace oscar {

// What the run expects. `facts`: the run's header (run_record.h), without layers.
struct StateFacts {
  Statistics facts;
  std::vector<std::uint64_t> row_priority;  // [R] of the row sample
  std::vector<std::int64_t> row_position;
  bool far_pairs = false;
};

// Running sums of a layer in the middle. InputError naming `where`, the tensor and the fault.
void check_running_sums(const LayerMoments& sums, const StateFacts& run, const std::string& where);

// A finished layer, by the rules of check_statistics(). InputError.
void check_finished_layer(const LayerMoments& moments, const StateFacts& run, const std::string& where);

// [2] FP64: an energy, and the run's tokens. InputError.
void check_energy_sum(const at::Tensor& energy, const StateFacts& run, const std::string& where,
                      const std::string& name);

}  // namespace oscar
