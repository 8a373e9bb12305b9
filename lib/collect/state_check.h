// Checks that the tensors of a collect work directory belong to the run that continues. It checks them before any is
// used, because LibTorch would silently broadcast a sum of one element.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/model_config.h"
#include "collect/collect_work.h"
#include "statistics/statistics.h"

namespace oscar {

// What the run expects. `facts`: the run's header (run_record.h), without layers.
struct StateFacts {
  Statistics facts;
  std::vector<std::uint64_t> row_priority;  // [R] of the row sample
  std::vector<std::int64_t> row_position;
  bool far_pairs = false;
};

// Checks a finished layer by the rules of check_statistics(). InputError.
void check_finished_layer(const LayerMoments& moments, const StateFacts& run, const std::string& where);

// Checks [2] FP64: an energy, and the number of the run's tokens. InputError.
void check_energy_sum(const at::Tensor& energy, const StateFacts& run, const std::string& where,
                      const std::string& name);

// Checks the point from which a run continues and every finished layer of the work directory: all before use, so damage
// shows at once and not at the end. InputError naming the file and the fault; log_info() says where the run continues.
void check_resume_point(const ResumePoint& point, const StateFacts& run, const ModelConfig& config,
                        const WorkDirectory& work);

}  // namespace oscar
