#include "statistics/point_check.h"

#include <algorithm>

#include "base/errors.h"
#include "base/log.h"

namespace oscar {
namespace {

void check_place(const ResumePoint& point, const RunPoints& points, const TokenPlan& plan, const std::string& where) {
  const auto steps = static_cast<std::int64_t>(plan.steps.size());
  if (point.layer <= points.last() && point.step <= (point.layer < points.last() ? steps : 0)) return;
  throw InputError(where + ": names layer " + std::to_string(point.layer) + " and step " + std::to_string(point.step) +
                   ", the run has " + std::to_string(points.layers) + " layers of " + std::to_string(steps) +
                   " steps; delete the work directory to start anew");
}

// Of the layer that was at work.
void check_sums(const ResumePoint& point, const StateFacts& run, const RunPoints& points, const ModelConfig& config,
                const std::string& where) {
  if (point.step == 0) return;
  const std::int64_t layer = points.layer_at(point.layer);
  const bool summed = layer >= 0 && layer < points.layers && config.holds_kv(layer);
  if (points.in_forward(point.layer)) {
    summed ? check_running_sums(point.sums, run, where)
           : check_energy_sum(point.sums.residual_energy, run, where, "residual_energy");
  } else if (summed) {
    points.in_kl(point.layer) ? check_kl_sums(point.sums, run, where) : check_row_gradient_sums(point.sums, run, where);
  }
}

void tell(const ResumePoint& point, const RunPoints& points, const TokenPlan& plan) {
  if (points.in_forward(point.layer)) {
    log_info("resuming at layer " + std::to_string(point.layer) + ", step " + std::to_string(point.step) + " of " +
             std::to_string(plan.steps.size()));
  } else if (point.layer < points.last()) {
    log_info("resuming in the backward passes, " + std::to_string(point.layer - points.layers) + " of " +
             std::to_string(points.last() - points.layers) + " stages done");
  }
}

}  // namespace

void check_resume_point(const ResumePoint& point, const StateFacts& run, const RunPoints& points,
                        const ModelConfig& config, const TokenPlan& plan, const WorkDirectory& work) {
  const std::string where = work.file("point.safetensors").string();
  check_place(point, points, plan, where);
  check_energy_sum(point.embedding_energy, run, where, "embedding_energy");
  check_sums(point, run, points, config, where);
  for (std::int64_t layer = 0; layer < std::min(point.layer, points.layers); ++layer) {
    if (!config.holds_kv(layer)) continue;
    const auto has = [&](bool asked, std::int64_t base) { return asked && points.through(base, layer, point.layer); };
    check_finished_layer(work.load_layer(layer), run, work.layer_file(layer).string(), has(points.kl, points.kl_base()),
                         has(points.row_gradients, points.row_gradient_base()));
  }
  tell(point, points, plan);
}

}  // namespace oscar
