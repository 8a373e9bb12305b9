#include "collect/state_check.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "base/log.h"
#include "statistics/statistics_format.h"

namespace oscar {
namespace {

constexpr const char* kAdvice = ", so the work directory is damaged; delete it to start anew";

[[noreturn]] void damaged(const std::string& where, const std::string& name, const std::string& fault) {
  throw InputError(where + ": tensor '" + name + "' " + fault + kAdvice);
}

void require_form(const at::Tensor& t, at::IntArrayRef shape, at::ScalarType dtype, const std::string& where,
                  const std::string& name) {
  if (!t.defined()) damaged(where, name, "is missing");
  if (t.sizes() != shape)
    damaged(where, name, "has shape " + shape_text(t.sizes()) + ", expected " + shape_text(shape));
  if (t.scalar_type() != dtype) {
    damaged(where, name, std::string("is ") + c10::toString(t.scalar_type()) + ", expected " + c10::toString(dtype));
  }
  if (!t.isfinite().all().item<bool>()) damaged(where, name, "holds NaN or infinity");
}

}  // namespace

void check_energy_sum(const at::Tensor& energy, const StateFacts& run, const std::string& where,
                      const std::string& name) {
  require_form(energy, {2}, at::kDouble, where, name);
  if (energy[0].item<double>() < 0 || energy[1].item<double>() != static_cast<double>(run.facts.tokens)) {
    damaged(where, name, "is not an energy over " + std::to_string(run.facts.tokens) + " tokens");
  }
}

void check_finished_layer(const LayerMoments& moments, const StateFacts& run, const std::string& where) {
  Statistics one = run.facts;
  one.layers = {moments};
  one.left_out.clear();  // the file name gives the layer
  one.layers[0].row_priority = run.row_priority;
  one.layers[0].row_position = run.row_position;
  if (run.far_pairs != moments.far_count.defined()) damaged(where, "far_count", "is not there as the run has it");
  if (!moments.residual_energy.defined()) damaged(where, "residual_energy", "is missing");
  if (!moments.rows_q.defined()) damaged(where, "rows_q", "is missing");
  try {
    check_statistics(one, where);
  } catch (const Error& e) {
    throw InputError(std::string(e.what()) + kAdvice);
  }
}

void check_resume_point(const ResumePoint& point, const StateFacts& run, const ModelConfig& config,
                        const WorkDirectory& work) {
  const std::string where = work.file("point.safetensors").string();
  if (point.layer > config.layers) {
    throw InputError(where + ": names layer " + std::to_string(point.layer) + ", the run has " +
                     std::to_string(config.layers) + " layers; delete the work directory to start anew");
  }
  check_energy_sum(point.embedding_energy, run, where, "embedding_energy");
  for (std::int64_t layer = 0; layer < point.layer; ++layer) {
    if (config.holds_kv(layer)) check_finished_layer(work.load_layer(layer), run, work.layer_file(layer).string());
  }
  if (point.layer < config.layers) log_info("resuming at layer " + std::to_string(point.layer));
}

}  // namespace oscar
