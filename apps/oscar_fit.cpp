// oscar-fit: statistics of oscar-collect -> a bundle of rotations and clip ratios.
#include <charconv>
#include <optional>

#include "apps/common_options.h"
#include "apps/device_choice.h"
#include "apps/fit_check.h"
#include "apps/fit_curves.h"
#include "apps/fit_output.h"
#include "apps/output_files.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/progress.h"
#include "bundle/bundle_files.h"
#include "bundle/from_fit.h"
#include "bundle/served_form.h"
#include "rotation/transforms.h"
#include "rotation/waterfill.h"

namespace oscar {
namespace {

constexpr const char* kExample =
    "oscar-fit stats.safetensors -o bundle\n"
    "oscar-fit stats.safetensors -o bundle --for sglang          (what that format carries without loss)\n"
    "oscar-fit stats.safetensors -o bundle --scope head --clip search\n"
    "oscar-fit stats.safetensors -o bundle --clip 0.96,0.92     (the published pair)\n"
    "oscar-fit stats.safetensors -o bundle --method waterfill --allocate measured --model Qwen/Qwen3-8B --text "
    "prompts.jsonl\n"
    "oscar-fit stats.safetensors -o small --method waterfill --bits 1.5 --curves bundle/curves.json\n"
    "oscar-fit check bundle --statistics new.safetensors --max-regret 1.5";

struct Arguments {
  CommonOptions common;
  FitOptions fit;
  Windows windows;
  std::string statistics, scope = "auto", value_target = "auto", clip = "auto", window_text = "64,256";
  std::string encoder = "auto", center = "auto", metric = "auto", widths, form;
  bool method_given = false;
  double bits = 0.0;
  bool text_hashes = true;
  std::int64_t context = -1;  // of --context; -1: not given
  std::vector<double> pareto;
  CurveArguments curves;
  CheckArguments check;
};

template <typename Number>
std::pair<Number, Number> parse_pair(const std::string& text, const char* option) {
  const std::size_t comma = text.find(',');
  std::pair<Number, Number> pair{};
  const auto read = [](const std::string& part, Number& value) {
    const auto end = std::from_chars(part.data(), part.data() + part.size(), value);
    return end.ec == std::errc() && end.ptr == part.data() + part.size() && !part.empty();
  };
  if (comma == std::string::npos || !read(text.substr(0, comma), pair.first) ||
      !read(text.substr(comma + 1), pair.second)) {
    throw UsageError(std::string(option) + " is '" + text + "', expected two numbers with a comma between them");
  }
  return pair;
}

// 2 bits for each code and 32 bits for each group: bits = 2 + 32 / group.
std::int64_t group_for_bits(double bits, std::int64_t head_dim) {
  std::string possible;
  for (std::int64_t group = head_dim; group >= 8; --group) {
    if (head_dim % group != 0) continue;
    const double b = 2.0 + 32.0 / static_cast<double>(group);
    if (std::abs(bits - b) < 1e-3) return group;
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", b);
    possible += (possible.empty() ? "" : ", ") + std::string(text);
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", bits);
  throw UsageError("--bits " + std::string(text) + " is not possible with head size " + std::to_string(head_dim) +
                   " and this method; choose one of: " + possible);
}

// "4211" -> {4, 2, 1, 1}.
std::vector<std::uint8_t> parse_widths(const std::string& text) {
  std::vector<std::uint8_t> widths;
  for (const char c : text) {
    if (c != '0' && c != '1' && c != '2' && c != '4') break;
    widths.push_back(static_cast<std::uint8_t>(c - '0'));
  }
  if (text.size() != 4 || widths.size() != 4) {
    throw UsageError("--widths has '" + text +
                     "', expected four digits of 0, 1, 2, 4 for keys and for values: 4211,4210");
  }
  return widths;
}

// What a published format can carry is fitted; what it cannot and was asked for all the same is refused.
void choose_for_format(Arguments& a) {
  const std::vector<std::string>& formats = served_formats();
  if (std::find(formats.begin(), formats.end(), a.form) == formats.end()) {
    std::string list;
    for (const std::string& name : formats) list += (list.empty() ? "" : ", ") + name;
    throw UsageError("--for '" + a.form + "' is not a format that a bundle is served in; it is one of " + list);
  }
  if (!is_published_format(a.form)) return;
  const bool general = a.form == "sglang-v3";
  if (general && !a.method_given) a.fit.method = "balanced";
  const TransformKind& kind = find_transform(a.fit.method);
  if (a.fit.method == "waterfill" || !a.widths.empty() || (kind.metric_aware && !general)) {
    throw UsageError("--for " + a.form + " cannot carry method " + a.fit.method +
                     (a.widths.empty() ? "" : " with --widths") + "; fit with --method " +
                     (general ? "balanced" : "oscar"));
  }
  const auto choose = [&](std::string& option, const char* flag, const std::string& value, const char* other = "") {
    if (option == "auto") option = value;
    if (option != value && option != other) {
      throw UsageError(std::string(flag) + " " + option + " is not what --for " + a.form + " can carry: that is " +
                       value);
    }
  };
  choose(a.encoder, "--encoder", "minmax");
  if (a.form != "sglang-v3")
    choose(a.scope, "--scope", a.form == "sglang" ? "layer" : "head", a.form == "sglang" ? "" : "layer");
  choose(a.center, "--center", general && kind.metric_aware ? "key" : "none", general ? "key" : "");
  if (a.clip == "auto") a.clip = "search";
  a.fit.one_clip = true;
}

// What a method takes where nothing was said: the published method as published, the metric-aware ones at their best.
void choose_defaults(Arguments& a, const TransformKind& kind) {
  const auto choose = [](std::string& option, const char* value) {
    if (option == "auto") option = value;
  };
  choose(a.scope, kind.metric_aware ? "head" : "layer");
  choose(a.value_target, kind.metric_aware ? "output" : "exact");
  choose(a.encoder, kind.metric_aware ? "search" : "minmax");
  choose(a.center, kind.metric_aware ? "mean" : "none");
  choose(a.clip, kind.metric_aware ? "none" : "search");
}

Windows parse_windows(const std::string& text, const char* option) {
  Windows windows;
  std::tie(windows.sink, windows.recent) = parse_pair<std::int64_t>(text, option);
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  if (windows.sink < 0 || windows.recent < 1 || windows.sink > kMost || windows.recent > kMost) {
    throw UsageError(std::string(option) + " " + text + ": the sink is a number from 0, the recent window one from 1");
  }
  return windows;
}

void parse_options(Arguments& a) {
  if (!a.form.empty()) choose_for_format(a);
  choose_defaults(a, find_transform(a.fit.method));
  a.fit.scope = a.scope == "head" ? Scope::kHead : Scope::kLayer;
  a.fit.value_target = a.value_target == "energy"   ? ValueTarget::kEnergy
                       : a.value_target == "output" ? ValueTarget::kOutput
                                                    : ValueTarget::kExact;
  a.fit.encoder = parse_encoder(a.encoder);
  a.fit.center = a.center == "mean"   ? Center::kMean
                 : a.center == "key"  ? Center::kKey
                 : a.center == "rope" ? Center::kRope
                                      : Center::kNone;
  a.fit.metric = a.metric == "fisher"    ? MetricSource::kFisher
                 : a.metric == "moments" ? MetricSource::kMoments
                                         : MetricSource::kAuto;
  if (!a.widths.empty()) {
    const std::size_t comma = a.widths.find(',');
    a.fit.key_widths = parse_widths(a.widths.substr(0, comma));
    a.fit.value_widths = comma == std::string::npos ? a.fit.key_widths : parse_widths(a.widths.substr(comma + 1));
  }
  if (a.clip == "none") {
    a.fit.clip = ClipMode::kNone;
  } else if (a.clip != "search") {
    a.fit.clip = ClipMode::kFixed;
    std::tie(a.fit.key_clip, a.fit.value_clip) = parse_pair<float>(a.clip, "--clip");
    for (const float ratio : {a.fit.key_clip, a.fit.value_clip}) {
      if (!(ratio >= 0.0F && ratio <= 1.0F)) throw UsageError("--clip " + a.clip + ": ratios are from 0 (off) to 1");
    }
  }
  a.windows = parse_windows(a.window_text, "--windows");
  a.fit.sink = a.windows.sink;
  a.fit.recent = a.windows.recent;
}

void choose_context(Arguments& a, const Statistics& statistics) {
  if (find_transform(a.fit.method).metric_aware) {
    a.fit.context = a.context >= 0 ? a.context : default_context(statistics);
  } else if (a.context >= 0) {
    throw UsageError("--context is for --method waterfill or balanced; " + a.fit.method +
                     " is fitted to the calibration prompts as they are");
  }
}

struct Fitted {
  Bundle bundle;
  FitResult result;
};

Fitted fit_bundle(const Statistics& statistics, const std::string& sha256, Arguments& a) {
  Fitted fitted;
  Progress progress("fit", static_cast<std::uint64_t>(fit_steps(statistics, a.fit)), "steps");
  a.fit.on_step = [&] { progress.advance(1); };
  fitted.result = fit(statistics, a.fit);
  progress.finish();
  a.fit.on_step = nullptr;
  const FitSource source{fs::path(a.statistics).filename().string(), sha256, tool_version(), a.text_hashes};
  fitted.bundle = bundle_from_fit(statistics, a.fit, fitted.result, a.windows, source);
  if (!a.form.empty()) {
    fitted.bundle.provenance["options"]["for"] = a.form;
    served_form(fitted.bundle, a.form);  // refuses what the format cannot carry: odd windows or head sizes
  }
  return fitted;
}

// Widths by measured curves, where there are some: the fit is told them, the bundle what they promise.
Fitted fit_allocated(const Statistics& statistics, const std::string& sha256, const std::optional<Curves>& curves,
                     Arguments& a) {
  CurveAllocation allocation;
  if (curves) {
    allocation = allocate_curves(*curves, a.fit.bits);
    a.fit.key_profiles = allocation.key;
    a.fit.value_profiles = allocation.value;
  }
  Fitted fitted = fit_bundle(statistics, sha256, a);
  if (curves) add_curves(fitted.bundle, *curves, allocation.predicted);
  return fitted;
}

// fit_allocated() when `written` bundles of a run are complete, which an interruption leaves there.
Fitted fit_next(const Statistics& statistics, const std::string& sha256, const std::optional<Curves>& curves,
                Arguments& a, std::size_t written) {
  try {
    return fit_allocated(statistics, sha256, curves, a);
  } catch (const InterruptedError&) {
    if (written == 0) throw;
    throw InterruptedError("interrupted; " + std::to_string(written) + " of " + std::to_string(a.pareto.size()) +
                           " bundles are complete in " + a.common.output +
                           ", run again with the budgets that are missing");
  }
}

// Nothing that is read may be written. OUTPUT is one bundle; with --pareto it is a folder of them.
void check_roles(const Arguments& a, const std::vector<fs::path>& outputs) {
  FileRoles roles;
  roles.inputs({a.statistics, a.curves.file, a.common.config});
  for (const fs::path& output : outputs) roles.output_directory(output, "-o");
  add_curve_roles(a.curves, a.common, roles);
  roles.check();
}

void save(const Bundle& bundle, const std::optional<Curves>& curves, const fs::path& directory, bool overwrite) {
  if (curves) {
    save_bundle(bundle, *curves, directory, overwrite);
  } else {
    save_bundle(bundle, directory, overwrite);
  }
}

std::optional<Curves> measured_curves(const Statistics& statistics, const std::string& sha256, Arguments& a) {
  if (!uses_curves(a.curves, a.common, a.fit.method)) return std::nullopt;
  return curves_for(statistics, sha256, a.fit, a.windows, a.common, a.curves, a.text_hashes);
}

// One bundle for each budget, and a table of what they are predicted to cost.
int run_pareto(Arguments& a) {
  if (a.fit.method != "waterfill") throw UsageError("--pareto is for --method waterfill, whose budget can be chosen");
  const auto directory = [&](double bits) { return fs::path(a.common.output) / ("bits-" + bits_text(bits)); };
  std::vector<fs::path> outputs;
  for (const double bits : a.pareto) {
    outputs.push_back(directory(bits));
    AtomicDirectory::require_usable(directory(bits), a.common.overwrite, bundle_directory());
  }
  check_roles(a, outputs);
  const Statistics statistics = load_statistics(a.statistics);
  choose_context(a, statistics);
  for (const double bits : a.pareto) require_budget(bits, static_cast<int>(statistics.head_dim));
  const std::string sha256 = sha256_file(a.statistics);
  a.fit.device = choose_device(a.common);
  std::optional<Curves> curves;  // a dry run measures nothing: its table is that of the closed form
  if (!a.common.dry_run || !a.curves.file.empty()) curves = measured_curves(statistics, sha256, a);
  std::vector<ParetoRow> rows;
  for (const double bits : a.pareto) {
    a.fit.bits = bits;
    const Fitted fitted = fit_next(statistics, sha256, curves, a, a.common.dry_run ? 0 : rows.size());
    if (rows.empty()) {
      for (const std::string& warning : fitted.result.warnings) log_warning(warning);
    }
    if (!a.common.dry_run) {
      make_directory(a.common.output);
      save(fitted.bundle, curves, directory(bits), a.common.overwrite);
    }
    rows.push_back(pareto_row(bits, fitted.bundle, fitted.result, directory(bits).string()));
  }
  print_pareto(rows, a.common.dry_run, a.common.json);
  return 0;
}

// Options that would do nothing.
void refuse_idle_options(const CLI::App& app, const Arguments& a, bool measures) {
  const std::string method = "is not used by --method " + a.fit.method + ": ";
  if (!find_transform(a.fit.method).metric_aware) {
    refuse_options(app, {"--exponent", "--damping"}, method + "it is for balanced and waterfill");
  }
  if (a.fit.method != "balanced") refuse_options(app, {"--widths"}, method + "it is for balanced");
  if (measures) return;
  refuse_options(app,
                 {"--model", "--text", "--revision", "--dtype", "--curve-context", "--curve-sequences", "--work-dir",
                  "--resume", "--stream-layers"},
                 "is for --allocate measured, and no curves are measured");
}

int run_fit(const CLI::App& app, Arguments& a) {
  if (a.statistics.empty()) throw UsageError("the statistics file is missing (oscar-fit --help explains)");
  if (a.common.output.empty()) throw UsageError("-o/--output is required (oscar-fit --help explains)");
  require_no_stdout(a.common.output, "a bundle, which is a folder,");
  parse_options(a);
  const bool curves_wanted = uses_curves(a.curves, a.common, a.fit.method);
  refuse_idle_options(app, a, curves_wanted && a.curves.file.empty());
  if (!a.pareto.empty()) return run_pareto(a);
  AtomicDirectory::require_usable(a.common.output, a.common.overwrite, bundle_directory());
  check_roles(a, {a.common.output});
  const Statistics statistics = load_statistics(a.statistics);
  choose_context(a, statistics);
  if (a.fit.method == "waterfill") {
    if (a.bits > 0.0) a.fit.bits = a.bits;
    require_budget(a.fit.bits, static_cast<int>(statistics.head_dim));
  } else if (a.bits > 0.0) {
    a.fit.group = group_for_bits(a.bits, statistics.head_dim);
  }
  a.fit.device = choose_device(a.common);
  if (a.common.dry_run) {
    FitPlan plan = plan_fit(statistics, a.fit);
    if (curves_wanted && a.curves.file.empty()) {
      plan.curves = plan_curves(statistics, a.fit, a.windows, a.common, a.curves);
    }
    print_fit_plan(plan, a.common.output, a.common.json);
    return 0;
  }
  const std::string sha256 = sha256_file(a.statistics);
  const std::optional<Curves> curves = measured_curves(statistics, sha256, a);
  const Fitted fitted = fit_allocated(statistics, sha256, curves, a);
  for (const std::string& warning : fitted.result.warnings) log_warning(warning);
  save(fitted.bundle, curves, a.common.output, a.common.overwrite);
  print_fit_result(fitted.bundle, fitted.result, a.common.output, a.common.json);
  return 0;
}

int main_fit(int argc, char** argv) {
  Arguments a;
  std::string methods;
  for (const TransformKind& kind : transform_kinds()) methods += "\n  " + kind.id + ": " + kind.summary;
  CLI::App app{"Fit 2-bit KV-cache rotations and clip ratios to statistics of oscar-collect.", "oscar-fit"};
  set_up_app(app, a.common, kExample);
  app.add_option("statistics", a.statistics, "Statistics file of oscar-collect")->type_name("FILE");
  add_output_options(app, a.common, false);
  app.add_option("--method", a.fit.method, "Transform:" + methods)->capture_default_str();
  app.add_option(
         "--for", a.form,
         "Fit what this export format carries without loss: for sglang, sglang-v2 and sglang-v3 one clip ratio "
         "for the keys and one for the values of all layers, and encoder minmax; sglang-v3 takes method balanced; "
         "transformers and absorbed carry everything")
      ->type_name("FORMAT");
  app.add_option("--scope", a.scope, "One rotation for a layer (oscar), or one for each KV head (balanced, waterfill)")
      ->check(CLI::IsMember({"auto", "layer", "head"}))
      ->capture_default_str();
  app.add_option(
         "--value-target,--value-metric", a.value_target,
         "What the value side is fitted to: V^T S^T S V (exact; oscar), its proxy (energy), or W_O^T W_O (output; "
         "balanced, waterfill)")
      ->check(CLI::IsMember({"auto", "exact", "energy", "output"}))
      ->capture_default_str();
  app.add_option(
         "--center", a.center,
         "Store keys (key) or keys and values (mean) without the mean of their head (balanced, waterfill: mean); rope: "
         "mean, but of the keys before RoPE, rotated to each position (CPU only)")
      ->check(CLI::IsMember({"auto", "none", "key", "mean", "rope"}))
      ->capture_default_str();
  app.add_option(
         "--metric", a.metric,
         "What weighs errors in balanced and waterfill: the far-pair metrics of the statistics, or Q^T Q and the "
         "value target")
      ->check(CLI::IsMember({"auto", "fisher", "moments"}))
      ->capture_default_str();
  app.add_option("--damping", a.fit.damping, "Damping of balanced and waterfill, relative to the diagonals")
      ->check(real_number(0.0, 0.1))
      ->capture_default_str();
  app.add_option("--exponent", a.fit.exponent, "Balanced and waterfill: 0 is orthogonal, 1 fully balanced")
      ->check(real_number(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--widths", a.widths, "Balanced: the same block widths in every layer, such as 4211,4210")
      ->type_name("K,V");
  app.add_option("--clip", a.clip, "search (oscar), none (balanced, waterfill), or the ratios K,V for all layers")
      ->capture_default_str();
  add_device_option(app, a.common);
  app.add_option(
         "--encoder", a.encoder,
         "How scales and codes are chosen; engines that read published files use minmax; feedback also lets the "
         "errors of channels cancel where queries and W_O read them (CPU only)")
      ->check(CLI::IsMember({"auto", "minmax", "search", "feedback"}))
      ->capture_default_str();
  app.add_option("--bits", a.bits,
                 "Bits per quantised element, parameters included: for waterfill any budget (default 2.25), else 2 + "
                 "32/group (default: one group)")
      ->check(real_number(0.01, 100.0));
  app.add_option("--pareto", a.pareto,
                 "Waterfill: a bundle for each of these budgets, in folders of OUTPUT, and a table")
      ->delimiter(',')
      ->check(real_number(0.01, 100.0))
      ->type_name("B,B,...");
  app.add_option("--windows", a.window_text, "BF16 tokens at the start and at the end")->capture_default_str();
  app.add_option("--context", a.context,
                 "Balanced and waterfill: tokens of the contexts that will be served, however short the calibration "
                 "prompts were; keys are fitted to their mean over these positions. 0: to the positions of the prompts "
                 "(default: the model's maximum, at most 131072)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30));
  app.add_option("--rows", a.fit.max_rows, "Sampled tokens used for the clip search")
      ->check(whole_number(32, std::uint64_t{1} << 20))
      ->capture_default_str();
  app.add_flag("--text-hashes,!--no-text-hashes", a.text_hashes,
               "Put the hashes of the calibration text into the bundle (calibration_hashes.json), so that oscar-verify "
               "can warn of text that was calibrated on; others can test texts by them, too")
      ->default_str("on");
  app.add_option("--allocate", a.curves.allocate,
                 "Waterfill: widths by the closed form, or by KL measured for each layer and side, on --model and "
                 "--text (default: closed; measured with --curves)")
      ->check(CLI::IsMember({"auto", "closed", "measured"}));
  app.add_option("--model", a.common.model, "The model that the statistics are of, to measure curves on")
      ->type_name("DIR|org/name");
  app.add_option("--text", a.curves.text,
                 "Calibration text for the curves: .jsonl prompts or .txt documents, never text that oscar-verify "
                 "scores")
      ->type_name("FILE");
  app.add_option("--curve-context", a.curves.context, "Tokens of each sequence of the curves")
      ->check(whole_number(64, std::uint64_t{1} << 24))
      ->capture_default_str();
  app.add_option("--curve-sequences", a.curves.sequences,
                 "Sequences of the text that curves are measured on (default: 8 on a GPU, 4 on the CPU)")
      ->check(whole_number(1, 10000));
  app.add_option("--curves", a.curves.file,
                 "curves.json of a bundle of the same fit, in place of measuring: other budgets")
      ->type_name("FILE");
  app.add_option("--work-dir", a.curves.work_dir, "Where the state of measuring is kept (default: OUTPUT.curves.work)")
      ->type_name("DIR");
  app.add_flag("--resume", a.curves.resume, "Continue the measuring in the work directory, if there is one");
  app.add_flag("--stream-layers", a.curves.stream_layers, "Curves: keep one layer's weights in memory; same results");
  app.add_option("--revision", a.common.revision, "Branch, tag or commit in the Hugging Face cache");
  app.add_option("--dtype", a.common.dtype, "Of weights and activations of the model that curves are measured on")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}))
      ->capture_default_str();
  a.curves.resume_command = resume_command(argc, argv);
  const CLI::App* check = add_check_command(app, a.check);
  app.require_subcommand(0, 1);
  return run_app(app, a.common, argc, argv, [&] {
    a.method_given = app.get_option("--method")->count() > 0;
    return check->parsed() ? run_check(a.check, a.common.json) : run_fit(app, a);
  });
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { return oscar::main_fit(argc, argv); }
