#include "apps/options/fit_arguments.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "apps/fit_model.h"
#include "apps/options/pair_options.h"
#include "base/errors.h"
#include "base/log.h"
#include "export/export_format.h"
#include "fit/fit.h"
#include "fit/waterfill.h"
#include "registry/registry.h"

namespace oscar {
namespace {

// 2 bits per code and 32 bits per group: bits = 2 + 32 / group.
std::int64_t group_for_bits(double bits, std::int64_t head_dim) {
  std::string possible;
  for (std::int64_t group = head_dim; group >= 8; --group) {
    if (head_dim % group != 0) continue;
    const double b = 2.0 + 32.0 / static_cast<double>(group);
    if (std::abs(bits - b) < 1e-3) return group;
    possible += (possible.empty() ? "" : ", ") + bits_text(b);
  }
  throw UsageError("--bits " + bits_text(bits) + " is not possible with head size " + std::to_string(head_dim) +
                   " and this method; choose one of: " + possible);
}

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

// Defaults of a method: the published method as published, Fisher-weighted ones at their best.
void choose_defaults(FitArguments& a, const MethodRow& method) {
  const auto choose = [](std::string& option, const char* value) {
    if (option == "auto") option = value;
  };
  choose(a.scope, method.metric_aware() ? "head" : "layer");
  choose(a.encoder, method.metric_aware() ? "search" : "minmax");
  // Methods that allocate bits choose the center per layer (fit/key_center.h).
  if (!method.allocates_bits) choose(a.center, method.metric_aware() ? "mean" : "none");
  choose(a.clip, method.metric_aware() ? "none" : "search");
}

}  // namespace

void parse_options(FitArguments& a) {
  // The same default with statistics as with a model. With --for, the format decides below.
  if (!a.method_given) a.fit.method = preferred_method().id;
  if (!a.form.empty()) choose_for_format(a);
  choose_defaults(a, fitted_method(a.fit.method));
  a.fit.scope = a.scope == "head" ? Scope::kHead : Scope::kLayer;
  a.fit.value_target = fitted_method(a.fit.method).metric_aware() ? ValueTarget::kOutput : ValueTarget::kExact;
  a.fit.encoder = parse_encoder(a.encoder);
  a.fit.center = a.center == "mean"   ? Center::kMean
                 : a.center == "key"  ? Center::kKey
                 : a.center == "rope" ? Center::kRope
                 : a.center == "auto" ? Center::kAuto
                                      : Center::kNone;
  if (a.clip == "none") {
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

void choose_context(FitArguments& a, const Statistics& statistics) {
  if (fitted_method(a.fit.method).metric_aware()) {
    a.fit.context = a.context >= 0 ? a.context : default_context(statistics);
  }
}

void choose_bits(FitArguments& a, std::int64_t head_dim) {
  if (fitted_method(a.fit.method).allocates_bits) {
    if (a.bits > 0.0) a.fit.bits = a.bits;
    require_budget(a.fit.bits, static_cast<int>(head_dim));
  } else if (a.bits > 0.0) {
    a.fit.quant_group = group_for_bits(a.bits, head_dim);
  }
  for (const double bits : a.pareto) require_budget(bits, static_cast<int>(head_dim));
}

std::vector<double> budgets_of(const FitArguments& a) {
  std::vector<double> budgets = a.pareto;
  if (budgets.empty()) budgets.push_back(a.bits > 0.0 ? a.bits : a.fit.bits);
  std::sort(budgets.begin(), budgets.end());
  return budgets;
}

// From this budget on, curves on self-generated text mislead; below it they help (docs/results.md).
constexpr double kOwnTextMisleads = 1.5;

bool measures_by_default(const FitArguments& a, const ModelConfig& model) {
  if (model.state_width() != model.hidden) return false;  // refuse_carried_rows()
  if (!a.collect.prompts.empty() || !a.curves.text.empty() || !a.curves.file.empty()) return true;
  if (budgets_of(a).front() < kOwnTextMisleads) return true;
  log_info("widths are chosen by the closed form, as curves on text that the model writes itself would mislead");
  return false;
}

void choose_for_model(FitArguments& a, const ModelConfig& model) {
  a.curves.collects = true;
  const ExportFormat* format = find_export_format(a.form);
  if (!a.method_given && (format == nullptr || !format->published())) a.fit.method = preferred_method().id;
  if (a.curves.allocate == "auto" && fitted_method(a.fit.method).allocates_bits) {
    a.curves.allocate = a.target.given() || measures_by_default(a, model) ? "measured" : "closed";
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
  if (measures) return;
  const char* why = "is for measured curves, and none are measured here (--allocate measured does)";
  refuse_options(app, {"--text", "--curve-context", "--curve-sequences"}, why);
  if (a.curves.collects) return;
  refuse_options(app, {"--model", "--revision", "--dtype", "--stream-layers", "--work-dir", "--resume"}, why);
}

void note_given_options(const CLI::App& app, FitArguments& a) {
  a.method_given = app.get_option("--method")->count() > 0;
  a.far_pairs_given = app.get_option("--far-pairs")->count() > 0;
  a.collect.tokens_given = app.get_option("--tokens")->count() > 0;
}

}  // namespace oscar
