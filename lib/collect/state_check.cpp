#include "collect/state_check.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "base/log.h"
#include "statistics/layer_fields.h"
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

// Running grams are not yet exactly symmetric, but their diagonals are sums of squares.
void require_gram(const at::Tensor& t, const Statistics& s, const std::string& where, const std::string& name) {
  require_form(t, {s.kv_heads, s.head_dim, s.head_dim}, at::kDouble, where, name);
  if (t.diagonal(0, 1, 2).min().item<double>() < 0) damaged(where, name, "has a negative diagonal");
}

// False for moments that are made when a layer is finished, not summed while it runs.
bool summed(const MomentField& field) {
  return field.tensor != &LayerMoments::energy_gram && field.tensor != &LayerMoments::wo_gram;
}

}  // namespace

void check_energy_sum(const at::Tensor& energy, const StateFacts& run, const std::string& where,
                      const std::string& name) {
  require_form(energy, {2}, at::kDouble, where, name);
  if (energy[0].item<double>() < 0 || energy[1].item<double>() != static_cast<double>(run.facts.tokens)) {
    damaged(where, name, "is not an energy over " + std::to_string(run.facts.tokens) + " tokens");
  }
}

void check_running_sums(const LayerMoments& sums, const StateFacts& run, const std::string& where) {
  const Statistics& s = run.facts;
  for (const MomentField& field : kMomentFields) {
    if (!summed(field)) continue;
    if (field.gram) {
      require_gram(sums.*field.tensor, s, where, field.name);
    } else {
      require_form(sums.*field.tensor, {s.kv_heads, s.head_dim}, at::kDouble, where, field.name);
    }
  }
  for (const MetricField& field : kFarPairFields) {
    if (!run.far_pairs) break;
    if (field.gram) {
      require_gram(sums.*field.tensor, s, where, field.name);
      continue;
    }
    require_form(sums.*field.tensor, {2}, at::kDouble, where, field.name);
    const at::Tensor& count = sums.*field.tensor;
    if (count.min().item<double>() < 0 || count[0].item<double>() > static_cast<double>(s.tokens) ||
        count[1].item<double>() < count[0].item<double>()) {
      damaged(where, field.name, "is no count of far queries and pairs");
    }
  }
  const auto rows = static_cast<std::int64_t>(run.row_priority.size());
  for (const RowField& field : kRowFields) {
    require_form(sums.*field.tensor, {rows, field.query ? s.query_heads : s.kv_heads, s.head_dim}, at::kFloat, where,
                 std::string("rows_") + field.name);
  }
  check_energy_sum(sums.residual_energy, run, where, "residual_energy");
  const auto check_attention = [&](const at::Tensor& sum, const char* name) {
    require_form(sum, {2, 2}, at::kDouble, where, name);
    if (sum.min().item<double>() < 0 || sum.select(1, 1).max().item<double>() > static_cast<double>(s.tokens)) {
      damaged(where, name, "is not an energy over at most " + std::to_string(s.tokens) + " tokens");
    }
  };
  check_attention(sums.attention_residual, "attention_residual");
  if (sums.attention_gain.defined()) check_attention(sums.attention_gain, "attention_gain");
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
