#include "apps/options/fit_arguments.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/errors.h"
#include "base/log.h"
#include "collect/collect_phases.h"
#include "export/export_format.h"
#include "pipeline/common/common_options.h"
#include "pipeline/common/output_files.h"
#include "pipeline/fit/fit_model.h"
#include "registry/registry.h"

namespace oscar {
namespace {

// Chooses what a published format can carry, and refuses explicit options that it cannot.
void choose_for_format(FitArguments& a) {
  const ExportFormat* format = find_export_format(a.form);
  if (format == nullptr) {
    throw UsageError("--for '" + a.form + "' is not a format that a bundle is served in; it is one of " +
                     export_format_list());
  }
  if (!format->published()) return;
  if (!a.method_given) a.fit.method = format->method;
  const MethodRow& method = fitted_method(a.fit.method);
  if (!format->carries(method)) {
    throw UsageError("--for " + a.form + " cannot carry method " + a.fit.method + "; fit with --method " +
                     format->method);
  }
  const auto choose = [&](std::string& option, const char* flag, const std::string& value,
                          const std::string& other = "") {
    if (option == "auto") option = value;
    if (option != value && option != other) {
      throw UsageError(std::string(flag) + " " + option + " is not what --for " + a.form + " can carry: that is " +
                       value);
    }
  };
  choose(a.encoder, "--encoder", "minmax");
  if (!format->scopes.empty()) choose(a.scope, "--scope", format->scopes.front(), format->scopes.back());
  choose(a.center, "--center", method.metric_aware() ? "key" : "none", format->general ? "key" : "");
  if (a.clip == "auto") a.clip = "search";
  a.fit.one_clip = true;
}

// Parses the texts of options, and sets the defaults of a method or of --for.
void parse_options(FitArguments& a) {
  // The same default with statistics as with a model. With --for, the format decides below.
  if (!a.method_given) a.fit.method = preferred_method().id;
  if (!a.form.empty()) choose_for_format(a);
  const FitOptions usual = usual_options(fitted_method(a.fit.method));
  a.fit.scope = a.scope == "auto" ? usual.scope : a.scope == "head" ? Scope::kHead : Scope::kLayer;
  a.fit.value_target = usual.value_target;
  a.fit.encoder = a.encoder == "auto" ? usual.encoder : parse_encoder(a.encoder);
  a.fit.center = a.center == "auto"   ? usual.center
                 : a.center == "mean" ? Center::kMean
                 : a.center == "key"  ? Center::kKey
                 : a.center == "rope" ? Center::kRope
                                      : Center::kNone;
  if (a.clip == "auto") {
    a.fit.clip = usual.clip;
  } else if (a.clip == "none") {
    a.fit.clip = ClipMode::kNone;
  } else if (a.clip != "search") {
    a.fit.clip = ClipMode::kFixed;
    std::tie(a.fit.key_clip, a.fit.value_clip) = parse_clip_pair(a.clip);
  }
  a.windows = parse_windows(a.window_text);
  const ExportFormat* format = find_export_format(a.form);
  for (const std::int64_t window : {a.windows.sink, a.windows.recent}) {
    if (format == nullptr || window % format->window_step == 0) continue;
    throw UsageError("--windows " + a.window_text + " is not what --for " + a.form +
                     " can carry: that is multiples of " + std::to_string(format->window_step) + " tokens");
  }
  a.fit.sink = a.windows.sink;
  a.fit.recent = a.windows.recent;
}

void check_context(const FitArguments& a) {
  if (a.context < 0 || a.curves.collects || fitted_method(a.fit.method).metric_aware()) return;
  throw UsageError("--context is for --method waterfill or balanced; " + a.fit.method +
                   " is fitted to the calibration prompts as they are");
}

// From this budget on, curves on self-generated text mislead; below it they help (docs/results.md).
constexpr double kOwnTextMisleads = 1.5;

bool measures_by_default(const FitArguments& a, const ModelConfig& model) {
  if (model.state_width() != model.hidden) return false;  // refuse_carried_rows()
  if (!a.collect.prompts.empty() || !a.curves.text.empty() || !a.curves.file.empty()) return true;
  if (budgets_of(a, budget_of(a, model.is_latent())).front() < kOwnTextMisleads) return true;
  log_info("widths are analytic, because curves on text that the model writes itself would mislead");
  return false;
}

// For --model instead of statistics, which are then collected. The default is the best method with measured allocation.
// For a model whose curves cannot be measured (refuse_carried_rows()), it is the analytic allocation.
void choose_for_model(FitArguments& a, const ModelConfig& model) {
  a.curves.collects = true;
  const ExportFormat* format = find_export_format(a.form);
  if (!a.method_given && (format == nullptr || !format->published())) a.fit.method = preferred_method().id;
  if (a.curves.allocate == "auto" && fitted_method(a.fit.method).allocates_bits) {
    a.curves.allocate = a.target.given() || measures_by_default(a, model) ? "measured" : "analytic";
  }
  a.statistics = statistics_beside(a.common.output).string();
  if (!a.far_pairs_given) a.collect.far_pairs = a.window_text;
  CollectOptions& options = a.collect.options;
  options.rows = static_cast<std::int64_t>(a.fit.max_rows);
  options.text_hashes = a.text_hashes;
  a.collect.stream_layers = a.curves.stream_layers;
  a.collect.context = std::max<std::int64_t>(a.context, 0);
  options.resume = a.curves.resume;
  options.resume_command = a.curves.resume_command;
  if (!a.curves.work_dir.empty()) a.curves.work_dir += "/curves";
}

// UsageError for options without effect. measures: curves are measured. `--allocate auto` leaves it to the method
// whether they are, for scripts.
void refuse_idle_options(const CLI::App& app, const FitArguments& a, bool measures) {
  if (!a.curves.collects) {
    refuse_options(app,
                   {"--prompts", "--own-text", "--skip-bad-rows", "--tokens", "--pack", "--seq-len", "--far-pairs",
                    "--checkpoint-seconds", "--seed"},
                   "is for collecting statistics, and a statistics file is given: drop one of the two");
  }
  if (!a.curves.collects && a.curves.text.empty()) {
    refuse_options(app, {"--column", "--render", "--date"},
                   "is for rows of --prompts and --text, and none are read: drop it");
  }
  if (measures || (a.curves.allocate == "auto" && app.get_option("--allocate")->count() > 0)) return;
  const char* why = "is for measured curves, and none are measured here (--allocate measured does)";
  refuse_options(app, {"--text", "--curve-context", "--curve-sequences"}, why);
  if (a.curves.collects) return;
  refuse_options(app, {"--model", "--revision", "--dtype", "--stream-layers", "--work-dir", "--resume"}, why);
}

// Ranks share only the measurement of curves; the rest of a fit takes seconds on one.
void require_shared_work(const FitArguments& a, bool measures) {
  if (a.curves.ranks == nullptr || (measures && !a.curves.collects)) return;
  throw UsageError("torchrun started " + std::to_string(a.curves.ranks->count()) +
                   " ranks, which share only measured curves (statistics, --method waterfill, --model and --text): " +
                   (a.curves.collects ? "collect with `torchrun ... oscar-collect` first, then pass its statistics"
                                      : "start this fit without torchrun"));
}

}  // namespace

void note_given_options(const CLI::App& app, FitArguments& a) {
  a.method_given = app.get_option("--method")->count() > 0;
  a.far_pairs_given = app.get_option("--far-pairs")->count() > 0;
  a.collect.tokens_given = app.get_option("--tokens")->count() > 0;
}

FitRequest complete_fit(const CLI::App& app, FitArguments a) {
  const Timeline::Phase starting(a.fit.timeline, phase::kStarting);
  if (a.statistics.empty() && a.common.model.empty()) {
    throw UsageError(
        "the statistics file is missing; give one, or --model to collect statistics first (oscar-fit --help explains)");
  }
  if (a.common.output.empty()) throw UsageError("-o/--output is required (oscar-fit --help explains)");
  require_no_stdout(a.common.output, "a bundle, which is a folder,");
  a.work_dir = a.curves.work_dir;
  std::optional<ModelConfig> config;  // known earlier if a model replaces statistics
  if (a.statistics.empty()) {
    config = Checkpoint::open(locate_model(a.common.model, a.common.revision)).config();
    choose_for_model(a, *config);
  }
  parse_options(a);
  const bool curves = uses_curves(a.curves, a.common, a.fit.method);
  a.fit.allocate = curves ? "measured" : "analytic";
  const bool measures = a.measures();
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
  return a;
}

}  // namespace oscar
