#include "collect/point_check.h"

#include <algorithm>

#include "base/errors.h"
#include "base/log.h"

namespace oscar {
namespace {

void check_place(const ResumePoint& point, std::int64_t layers, const TokenPlan& plan, const std::string& where) {
  const auto steps = static_cast<std::int64_t>(plan.steps.size());
  if (point.layer <= layers && point.step <= (point.layer < layers ? steps : 0)) return;
  throw InputError(where + ": names layer " + std::to_string(point.layer) + " and step " + std::to_string(point.step) +
                   ", the run has " + std::to_string(layers) + " layers of " + std::to_string(steps) +
                   " steps; delete the work directory to start anew");
}

// Checks the sums of the unfinished layer.
void check_sums(const ResumePoint& point, const StateFacts& run, const ModelConfig& config, const std::string& where) {
  if (point.step == 0) return;
  config.holds_kv(point.layer) ? check_running_sums(point.sums, run, where)
                               : check_energy_sum(point.sums.residual_energy, run, where, "residual_energy");
}

}  // namespace

void check_resume_point(const ResumePoint& point, const StateFacts& run, const ModelConfig& config,
                        const TokenPlan& plan, const WorkDirectory& work) {
  const std::string where = work.file("point.safetensors").string();
  check_place(point, config.layers, plan, where);
  check_energy_sum(point.embedding_energy, run, where, "embedding_energy");
  check_sums(point, run, config, where);
  for (std::int64_t layer = 0; layer < point.layer; ++layer) {
    if (config.holds_kv(layer)) check_finished_layer(work.load_layer(layer), run, work.layer_file(layer).string());
  }
  if (point.layer == config.layers) return;
  log_info("resuming at layer " + std::to_string(point.layer) + ", step " + std::to_string(point.step) + " of " +
           std::to_string(plan.steps.size()));
}

}  // namespace oscar
