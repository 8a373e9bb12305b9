// oscar-fit: converts statistics of oscar-collect to a bundle of rotations and clip ratios.
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "apps/fit_check.h"
#include "apps/fit_curves.h"
#include "apps/fit_model.h"
#include "apps/fit_output.h"
#include "apps/fit_outputs.h"
#include "apps/options/common_options.h"
#include "apps/options/device_choice.h"
#include "apps/options/fit_arguments.h"
#include "apps/output_files.h"
#include "apps/process_setup.h"
#include "apps/rank_run.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/progress.h"
#include "bundle/bundle_files.h"
#include "bundle/curve_allocation.h"
#include "bundle/manifest.h"
#include "collect/collect_phases.h"
#include "export/served_form.h"
#include "fit/fit.h"
#include "fit/fit_phases.h"
#include "fit/from_fit.h"
#include "fit/waterfill.h"
#include "model/device_memory.h"
#include "registry/registry.h"
#include "statistics/shard_merge.h"
#include "statistics/windowed_layers.h"

namespace oscar {
namespace {

constexpr const char* kExample =
    "oscar-fit --model Qwen/Qwen3-8B --prompts prompts.jsonl -o bundle      (collects, measures and fits)\n"
    "oscar-fit --model Qwen/Qwen3-8B -o bundle                  (the model writes its own calibration text)\n"
    "oscar-fit --model Qwen/Qwen3-8B --prompts prompts.jsonl -o bundle --preset balanced   (quality in place of bits)\n"
    "oscar-fit stats.safetensors -o bundle\n"
    "oscar-fit stats.safetensors -o bundle --for sglang          (what that format carries without loss)\n"
    "oscar-fit stats.safetensors -o bundle --scope head --clip search\n"
    "oscar-fit stats.safetensors -o bundle --clip 0.96,0.92     (the published pair)\n"
    "oscar-fit stats.safetensors -o bundle --method waterfill --model Qwen/Qwen3-8B --text "
    "prompts.jsonl\n"
    "oscar-fit stats.safetensors -o small --method waterfill --bits 1.5 --curves bundle/curves.json\n"
    "oscar-fit check bundle --statistics new.safetensors --max-regret 1.5";

struct Fitted {
  Bundle bundle;
  FitResult result;
};

// Hash of the statistics file; it takes as long as fitting a large model.
using FileHash = std::shared_future<std::string>;

std::string hash_of(const FileHash& hash, const FitArguments& a) {
  const Timeline::Phase reading(a.fit.timeline, phase::kStatistics);
  return hash.get();
}

Fitted fit_bundle(const Statistics& statistics, const FileHash& sha256, FitArguments& a) {
  Fitted fitted;
  Progress progress("fit", static_cast<std::uint64_t>(fit_steps(statistics, a.fit)), "steps");
  a.fit.on_step = [&] { progress.advance(1); };
  fitted.result = fit(statistics, a.fit);
  progress.finish();
  a.fit.on_step = nullptr;
  const FitSource source{fs::path(a.statistics).filename().string(), hash_of(sha256, a), tool_version(), a.text_hashes};
  fitted.bundle = bundle_from_fit(statistics, a.fit, fitted.result, a.windows, source);
  if (!a.form.empty()) {
    fitted.bundle.provenance["options"]["for"] = a.form;
    served_form(fitted.bundle, a.form);  // refuses head sizes that the format cannot carry
  }
  return fitted;
}

// Passes the allocated bit widths to the fit and the curves' prediction to the bundle.
Fitted fit_allocated(const Statistics& statistics, const FileHash& sha256, const std::optional<MeasuredCurves>& curves,
                     FitArguments& a, const std::optional<TargetChoice>& target = {}) {
  std::optional<PredictedKl> predicted;
  if (target) a.fit.bits = target->bits();
  if (curves) {
    const CurveAllocation widths = allocate_curves(curves->curves, a.fit.bits);
    a.fit.key_profiles = widths.key;
    a.fit.value_profiles = widths.value;
    predicted = target ? target->rows[target->chosen].predicted : widths.predicted;
  }
  Fitted fitted = fit_bundle(statistics, sha256, a);
  if (predicted) add_curves(fitted.bundle, curves->curves, *predicted);
  if (target) record_target(fitted.bundle, a.target, *target);
  return fitted;
}

// fit_allocated(), with `written` bundles of the run complete; an interruption keeps these.
Fitted fit_next(const Statistics& statistics, const FileHash& sha256, const std::optional<MeasuredCurves>& curves,
                FitArguments& a, std::size_t written) {
  try {
    return fit_allocated(statistics, sha256, curves, a);
  } catch (const InterruptedError&) {
    if (written == 0) throw;
    throw InterruptedError("interrupted; " + std::to_string(written) + " of " + std::to_string(a.pareto.size()) +
                               " bundles are complete in " + a.common.output +
                               ", run again with the budgets that are missing",
                           true);
  }
}

// Outputs must not overwrite inputs. OUTPUT is one bundle, or with --pareto a folder of bundles.
void check_roles(const FitArguments& a, const std::vector<fs::path>& outputs, const ModelRun* model) {
  FileRoles roles;
  roles.inputs({a.curves.file, a.common.config});
  if (model == nullptr) roles.input(a.statistics);
  for (const fs::path& output : outputs) roles.output_directory(output, "-o");
  add_curve_roles(a.curves, a.common, roles);
  if (model != nullptr) model->add_roles(roles);
  roles.check();
}

// Whether this process prints.
bool told(const FitArguments& a) { return is_first_rank(a.curves.ranks); }

// What remains if no budget meets a target.
std::string kept_curves(const MeasuredCurves& curves, const FitArguments& a) {
  if (!curves.state) return {};
  return "; the curves are kept, and --resume with another target takes them from " +
         curve_directory(a.curves, a.common).string();
}

// Call after the bundles are written.
void remove_state(const std::optional<MeasuredCurves>& curves, const FitArguments& a) {
  Ranks* ranks = a.curves.ranks;
  if (ranks != nullptr) ranks->barrier();
  if (curves && curves->state) curves->state->remove();
  if (ranks == nullptr) return;
  ranks->barrier();
  std::error_code ec;
  fs::remove(curve_directory(a.curves, a.common), ec);  // on each machine; fails if it contains other files
}

// Ranks share only the measurement of curves; the rest of a fit takes seconds on one.
void require_shared_work(const FitArguments& a, bool measures) {
  if (a.curves.ranks == nullptr || (measures && !a.curves.collects)) return;
  throw UsageError("torchrun started " + std::to_string(a.curves.ranks->count()) +
                   " ranks, which share only measured curves (statistics, --method waterfill, --model and --text): " +
                   (a.curves.collects ? "collect with `torchrun ... oscar-collect` first, then pass its statistics"
                                      : "start this fit without torchrun"));
}

std::optional<MeasuredCurves> measured_curves(const Statistics& statistics, const FileHash& sha256, FitArguments& a) {
  // A dry run does not run the model, so its table shows the analytic allocation.
  if (!uses_curves(a.curves, a.common, a.fit.method) || (a.common.dry_run && a.curves.file.empty())) return {};
  const Timeline::Phase measuring(a.fit.timeline, phase::kCurves);
  if (a.curves.file.empty()) a.curves.file = finished_curves(a, outputs_of(a));
  return curves_for(statistics, hash_of(sha256, a), a.fit, a.windows, a.common, a.curves, budgets_of(a), a.text_hashes);
}

// One bundle per budget, and a table of predicted errors.
void fit_pareto(FitArguments& a, const Statistics& statistics, const FileHash& sha256) {
  const std::optional<MeasuredCurves> curves = measured_curves(statistics, sha256, a);
  if (!told(a)) return remove_state(curves, a);
  std::vector<ParetoRow> rows;
  for (const double bits : a.pareto) {
    a.fit.bits = bits;
    const Fitted fitted = fit_next(statistics, sha256, curves, a, a.common.dry_run ? 0 : rows.size());
    if (rows.empty()) {
      for (const std::string& warning : fitted.result.warnings) log_warning(warning);
    }
    const fs::path directory = pareto_directory(a, bits);
    if (!a.common.dry_run) {
      make_directory(a.common.output);
      save_fitted(fitted.bundle, curves, directory, a);
    }
    rows.push_back(pareto_row(bits, fitted.bundle, fitted.result, directory.string()));
  }
  remove_state(curves, a);
  print_pareto(rows, a.common.dry_run, a.common.json);
}

void fit_one(FitArguments& a, const Statistics& statistics, const FileHash& sha256) {
  const std::optional<MeasuredCurves> curves = measured_curves(statistics, sha256, a);
  if (!told(a)) return remove_state(curves, a);
  std::optional<TargetChoice> target;
  if (a.target.given()) target = choose_budget(curves->curves, a.target, kept_curves(*curves, a));
  const Fitted fitted = fit_allocated(statistics, sha256, curves, a, target);
  for (const std::string& warning : fitted.result.warnings) log_warning(warning);
  save_fitted(fitted.bundle, curves, a.common.output, a);
  remove_state(curves, a);
  if (target && !a.common.json) print_summary(target_table(a.target, *target));
  print_fit_result(fitted.bundle, fitted.result, a.common.output, a.statistics, a.common.json,
                   target ? target_json(a.target, *target) : Json());
}

// Budgets whose wholes are measured.
std::size_t measured_budgets(const FitArguments& a) {
  return a.target.given() ? static_cast<std::size_t>(kTargetBudgets) : budgets_of(a).size();
}

// For --model instead of statistics: reads or generates prompts, and collects. Requests that the fit would refuse are
// refused first. False under --dry-run: only prints the plan.
bool collect_statistics(FitArguments& a, const std::vector<fs::path>& outputs, ModelRun& model, bool measures) {
  a.common.device = a.collect.options.device.str();  // as chosen
  a.common.dtype = dtype_option_name(a.collect.options.dtype);
  check_roles(a, outputs, &model);
  choose_bits(a, model.checkpoint().config().head_dim);
  {
    const Timeline::Phase reading(a.fit.timeline, phase::kPrompts);
    model.read_prompts();
  }
  std::optional<CurvePlan> curves;
  const at::Device device = a.collect.options.device;
  if (measures) {
    a.curves.loaded = model.curve_text(a.windows, a.curves);
    curves = plan_curves(model.checkpoint(), device, a.common, *a.curves.loaded, measured_budgets(a));
  }
  if (a.common.dry_run) {
    model.print_plan(curves);
    return false;
  }
  model.collect();
  return true;
}

int run_fit(const CLI::App& app, FitArguments& a) {
  std::optional<Timeline::Phase> starting(std::in_place, a.fit.timeline, phase::kStarting);
  if (a.statistics.empty() && a.common.model.empty()) {
    throw UsageError(
        "the statistics file is missing; give one, or --model to collect statistics first (oscar-fit --help explains)");
  }
  if (a.common.output.empty()) throw UsageError("-o/--output is required (oscar-fit --help explains)");
  require_no_stdout(a.common.output, "a bundle, which is a folder,");
  const std::string work_dir = a.curves.work_dir;
  std::optional<ModelConfig> config;  // known earlier if a model replaces statistics
  if (a.statistics.empty()) {
    config = Checkpoint::open(locate_model(a.common.model, a.common.revision)).config();
    choose_for_model(a, *config);
  }
  parse_options(a);
  const bool curves = uses_curves(a.curves, a.common, a.fit.method), measures = curves && a.curves.file.empty();
  a.fit.allocate = curves ? "measured" : "closed";
  if (config && measures) refuse_carried_rows(*config, "measuring curves");
  check_target(app, a.target, a.fit.method, fitted_method(a.fit.method).allocates_bits, curves);
  if (a.target.given()) a.curves.target_kl = a.target.kl_target();
  if (a.target.given() && measures && a.collect.prompts.empty() && a.curves.text.empty()) {
    log_warning(
        std::string(a.target.option()) +
        ": without --prompts the KL is predicted on text that the model writes itself, and traffic may have more");
  }
  refuse_idle_options(app, a, measures);
  require_shared_work(a, measures);
  if (!a.pareto.empty() && !fitted_method(a.fit.method).allocates_bits) {
    throw UsageError("--pareto is for --method waterfill, whose budget can be chosen");
  }
  check_context(a);
  const std::vector<fs::path> outputs = outputs_of(a);
  for (const fs::path& output : outputs) {
    if (told(a) && !may_be_done(output, a))
      AtomicDirectory::require_usable(output, a.common.overwrite, bundle_directory());
  }
  const std::jthread device = start_device(a.common, a.curves.ranks);  // while statistics are read
  std::optional<ModelRun> model;
  if (a.curves.collects) model.emplace(a.collect, a.common, work_dir);
  starting.reset();
  if (model) {
    if (!collect_statistics(a, outputs, *model, measures)) return 0;
  } else {
    check_roles(a, outputs, nullptr);
  }
  std::optional<Timeline::Phase> reading(std::in_place, a.fit.timeline, phase::kStatistics);
  const bool writes = !a.common.dry_run || !a.pareto.empty();
  FileHash sha256;  // computed in parallel with the fit
  if (writes) sha256 = std::async(std::launch::async, [file = fs::path(a.statistics)] { return sha256_file(file); });
  Statistics collected = load_statistics(a.statistics);
  const std::vector<LeftOutLayer> windowed = windowed_layers(collected, a.windows, a.statistics);
  const Statistics statistics = without_layers(std::move(collected), windowed);
  reading.reset();
  if (is_shard(statistics)) {
    log_warning(a.statistics + ": is " + shard_name(statistics) +
                " of a run, so the fit sees a part of its tokens; add up all shards with oscar-collect merge");
  }
  choose_context(a, statistics);
  choose_bits(a, statistics.head_dim);
  {
    const Timeline::Phase starting(a.fit.timeline, phase::kStarting);
    a.fit.device = choose_device(a.common, a.curves.ranks);
  }
  if (!writes) {
    FitPlan plan = plan_fit(statistics, a.fit);
    if (measures) {
      const Checkpoint checkpoint = open_model_of(statistics, a.common);
      plan.curves = plan_curves(checkpoint, a.fit.device, a.common, load_curve_text(checkpoint, a.windows, a.curves),
                                measured_budgets(a));
    }
    if (told(a)) print_fit_plan(plan, a.common.output, a.common.json);
    return 0;
  }
  a.pareto.empty() ? fit_one(a, statistics, sha256) : fit_pareto(a, statistics, sha256);
  if (model) model->finish();
  log_timeline(a.fit.timeline);
  log_device_memory(a.fit.device);
  return 0;
}

// The phases of collecting and of the fit, in the order of a run.
std::vector<std::string> phases() {
  std::vector<std::string> names = collect_phases();  // "saving" is last
  names.insert(names.begin() + 1, phase::kOwnText);
  names.insert(names.end() - 1,
               {phase::kStatistics, phase::kCurves, phase::kTransforms, phase::kClips, phase::kPredictions});
  return names;
}

// A collecting run keeps its text, statistics and curves at any interruption.
int run_fit_resumable(const CLI::App& app, FitArguments& a) {
  Timeline timeline(phases());
  timeline.add_earlier(phase::kStarting, process_seconds());
  if (a.common.verbose) a.fit.timeline = a.collect.options.timeline = &timeline;
  try {
    return run_fit(app, a);
  } catch (const InterruptedError& e) {
    if (!a.curves.collects || a.common.dry_run || e.resumes) throw;
    throw InterruptedError("interrupted; what was finished is kept. Resume with: " + a.curves.resume_command, true);
  }
}

int main_fit(int argc, char** argv) {
  FitArguments a;
  CLI::App app{"Fit 2-bit KV-cache rotations and clip ratios to statistics of oscar-collect.", "oscar-fit"};
  set_up_app(app, a.common, kExample);
  app.add_option("statistics", a.statistics, "Statistics file of oscar-collect")->type_name("FILE");
  add_output_options(app, a.common, false);
  add_fit_options(app, a);
  a.curves.resume_command = resume_command(argc, argv);
  const CLI::App* check = add_check_command(app, a.check);
  app.require_subcommand(0, 1);
  return run_app(app, a.common, argc, argv, [&] {
    note_given_options(app, a);
    a.curves.rows = a.collect.rows;
    if (check->parsed()) return run_check(a.check, a.common.json);
    a.curves.resume_command = as_started(a.curves.resume_command);
    return run_as_rank(a.curves.resume_command, [&](Ranks* ranks) {
      a.curves.ranks = ranks;
      return run_fit_resumable(app, a);
    });
  });
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { oscar::end_process(oscar::main_fit(argc, argv)); }
