#include "pipeline/fit/fit_listener.h"

#include <future>
#include <optional>
#include <thread>

#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "bundle/bundle_files.h"
#include "collect/collect_phases.h"
#include "fit/fit_phases.h"
#include "model/device.h"
#include "pipeline/common/device_choice.h"
#include "pipeline/fit/fit_model.h"
#include "pipeline/fit/fit_outputs.h"
#include "pipeline/fit/fit_widths.h"
#include "statistics/shard_merge.h"
#include "statistics/windowed_layers.h"

namespace oscar {
namespace {

// Outputs must not overwrite inputs. OUTPUT is one bundle, or with --pareto a folder of bundles.
void check_roles(const FitRequest& r, const ModelRun* model) {
  FileRoles roles;
  roles.inputs({r.curves.file, r.common.config});
  if (model == nullptr) roles.input(r.statistics);
  for (const fs::path& output : outputs_of(r)) roles.output_directory(output, "-o");
  add_curve_roles(r.curves, r.common, roles);
  if (model != nullptr) model->add_roles(roles);
  roles.check();
}

// The request with the device and type that the model's run has chosen.
FitRequest at_device_of(const ModelRun& model, FitRequest r) {
  r.common.device = model.device().str();
  r.curves.auto_dtype = r.common.dtype == "auto";
  r.common.dtype = dtype_option_name(model.dtype());
  return r;
}

// For a model instead of statistics: reads or generates prompts, and collects. Requests that the fit would refuse are
// refused first. text: that of the curves, if they are measured. False under --dry-run: only plans.
bool collect_statistics(const FitRequest& r, ModelRun& model, std::optional<CurveText>& text, FitListener& listener) {
  check_bits(r, model.checkpoint().config());
  {
    const Timeline::Phase reading(r.fit.timeline, phase::kPrompts);
    model.read_prompts(r.windows);
  }
  std::optional<CurvePlan> curves;
  if (r.measures()) {
    text = model.curve_text(r.windows, r.curves);
    curves = plan_curves(model.checkpoint(), model.device(), r.common, r.curves, *text, r.windows, measured_budgets(r));
  }
  // A target moves to other budgets until the measurement meets it: to two of them, say.
  const std::size_t measurements = r.target.given() ? 2 : measured_budgets(r);
  if (r.common.dry_run) {
    listener.planned(model.plan(curves, r.windows, measurements));
    return false;
  }
  if (curves && r.is_first()) model.log_other_ways(*curves, r.windows, measurements);
  model.collect(listener);
  return true;
}

// The statistics of the layers that the cache quantizes.
Statistics read_statistics(const FitRequest& r) {
  const Timeline::Phase reading(r.fit.timeline, phase::kStatistics);
  Statistics collected = load_statistics(r.statistics);
  const std::vector<LeftOutLayer> windowed = windowed_layers(collected, r.windows, r.statistics);
  Statistics statistics = without_layers(std::move(collected), windowed);
  if (is_shard(statistics)) {
    log_warning(r.statistics + ": is " + shard_name(statistics) +
                " of a run, so the fit sees a part of its tokens; add up all shards with oscar-collect merge");
  }
  return statistics;
}

void plan_run(const FitRequest& r, const FitInput& input, FitListener& listener) {
  FitPlan plan = plan_fit(input.statistics, input.options);
  if (r.measures()) {
    const Checkpoint checkpoint = open_model_of(input.statistics, r.common);
    plan.curves = plan_curves(checkpoint, input.options.device, r.common, r.curves,
                              load_curve_text(checkpoint, input.options.device, r.windows, r.curves), r.windows,
                              measured_budgets(r));
  }
  if (r.is_first()) listener.planned(plan);
}

// What remains if no budget meets a target.
std::string kept_curves(const MeasuredCurves& curves, const FitRequest& r) {
  if (!curves.state) return {};
  return "; the curves are kept, and --resume with another target takes them from " +
         curve_directory(r.curves, r.common).string();
}

// Call after the bundles are written.
void remove_state(const std::optional<MeasuredCurves>& curves, const FitRequest& r) {
  Ranks* ranks = r.curves.ranks;
  if (ranks != nullptr) ranks->barrier();
  if (curves && curves->state) curves->state->remove();
  if (ranks == nullptr) return;
  ranks->barrier();
  std::error_code ec;
  fs::remove(curve_directory(r.curves, r.common), ec);  // on each machine; fails if it contains other files
}

// fit_bundle(), with `written` bundles of the run complete; an interruption keeps these.
Fitted fit_next(const FitRequest& r, const FitInput& input, const std::optional<MeasuredCurves>& curves,
                std::size_t written) {
  try {
    return fit_bundle(r, input, curves);
  } catch (const InterruptedError&) {
    if (written == 0) throw;
    throw InterruptedError("interrupted; " + std::to_string(written) + " of " + std::to_string(r.pareto.size()) +
                               " bundles are complete in " + r.common.output +
                               ", run again with the budgets that are missing",
                           true);
  }
}

Measured measure(const FitRequest& r, HeldOutRun& held, Bundle& bundle) {
  const Timeline::Phase measuring(r.fit.timeline, phase::kHeldOut);
  Measured measured = held.measure(bundle);
  record_measured(bundle, held.text(), measured);
  if (r.check_rows) bundle.probe = held.probe();
  return measured;
}

// One bundle per budget, and a table of predicted errors. held: null: nothing is measured.
void save_pareto(const FitRequest& r, FitInput input, const std::optional<MeasuredCurves>& curves, HeldOutRun* held,
                 FitListener& listener) {
  std::vector<ParetoRow> rows;
  for (const double bits : r.pareto) {
    input.options.bits = bits;
    Fitted fitted = fit_next(r, input, curves, r.common.dry_run ? 0 : rows.size());
    if (rows.empty()) {
      for (const std::string& warning : fitted.result.warnings) log_warning(warning);
    }
    const fs::path directory = pareto_directory(r, bits);
    std::optional<Measured> measured;
    if (held != nullptr) measured = measure(r, *held, fitted.bundle);
    if (!r.common.dry_run) {
      make_directory(r.common.output);
      save_fitted(fitted.bundle, curves, directory, r);
    }
    rows.push_back(pareto_row(bits, fitted.bundle, fitted.result, directory.string()));
    if (measured) rows.back().kl = measured->quality.kl;
  }
  remove_state(curves, r);
  listener.saved(rows);
}

void save_one(const FitRequest& r, const FitInput& input, const std::optional<MeasuredCurves>& curves, HeldOutRun* held,
              FitListener& listener) {
  std::optional<TargetChoice> target;
  if (r.target.given()) target = choose_budget(curves->curves, r.target, kept_curves(*curves, r));
  Fitted fitted = fit_bundle(r, input, curves, target);
  std::optional<Measured> measured;
  if (held != nullptr) {
    measured = measure(r, *held, fitted.bundle);
    while (target && measured->quality.kl.mean > r.target.kl_target()) {
      climb(*target, r.target, *measured, kept_curves(*curves, r));
      fitted = fit_bundle(r, input, curves, target);
      measured = measure(r, *held, fitted.bundle);
    }
  }
  for (const std::string& warning : fitted.result.warnings) log_warning(warning);
  save_fitted(fitted.bundle, curves, r.common.output, r);
  remove_state(curves, r);
  listener.saved({fitted.bundle, fitted.result, held != nullptr ? &held->text() : nullptr,
                  measured ? &*measured : nullptr, target ? &*target : nullptr});
}

}  // namespace

void run_fit(const FitRequest& given, FitListener& listener) {
  std::optional<Timeline::Phase> starting(std::in_place, given.fit.timeline, phase::kStarting);
  for (const fs::path& output : outputs_of(given)) {
    if (given.is_first() && !may_be_done(output, given))
      AtomicDirectory::require_usable(output, given.common.overwrite, bundle_directory());
  }
  if (given.is_first()) refuse_other_bundles(given, nullptr, {});
  const std::jthread device = start_device(given.common, given.curves.ranks);  // while statistics are read
  std::optional<ModelRun> model;
  if (given.curves.collects) model.emplace(given.collect, given.common, given.work_dir);
  const FitRequest r = model ? at_device_of(*model, given) : given;
  starting.reset();
  check_roles(r, model ? &*model : nullptr);

  std::optional<CurveText> text;
  if (model && !collect_statistics(r, *model, text, listener)) return;
  const bool writes = !r.common.dry_run || !r.pareto.empty();
  FileHash sha256;
  if (writes) sha256 = std::async(std::launch::async, [file = fs::path(r.statistics)] { return sha256_file(file); });
  const Statistics statistics = read_statistics(r);
  FitInput input{statistics, sha256, fit_options_for(r, statistics)};
  {
    const Timeline::Phase choosing(r.fit.timeline, phase::kStarting);
    input.options.device = choose_device(r.common, r.curves.ranks);
  }
  if (!writes) return plan_run(r, input, listener);
  if (r.is_first() && r.curves.resume) refuse_other_bundles(r, &statistics, sha256.get());
  const std::optional<MeasuredCurves> curves = measure_widths(r, input, text);
  std::optional<HeldOutRun> held;
  if (std::optional<HeldOutText> out = model ? model->held_out(r.windows) : std::nullopt) {
    held.emplace(model->checkpoint(), DecoderOptions{model->dtype(), model->device()}, std::move(*out), r.windows);
  }
  if (!r.is_first()) {
    remove_state(curves, r);
  } else if (r.pareto.empty()) {
    save_one(r, input, curves, held ? &*held : nullptr, listener);
  } else {
    save_pareto(r, input, curves, held ? &*held : nullptr, listener);
  }
  if (model) model->finish();
  log_timeline(r.fit.timeline);
  log_device_memory(input.options.device);
}

}  // namespace oscar
