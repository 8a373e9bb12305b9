#include "pipeline/fit/fit_curves.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/log.h"
#include "bundle/calibration_hashes.h"
#include "checkpoint/model_location.h"
#include "curves/choose_profiles.h"
#include "curves/curve_passes.h"
#include "fit/fit.h"
#include "fit/from_fit.h"
#include "pipeline/common/device_choice.h"
#include "pipeline/common/output_files.h"
#include "pipeline/common/rank_run.h"
#include "registry/registry.h"
#include "report/number_text.h"

namespace oscar {
namespace {

// Fit options that affect transforms: everything except the allocation of bits.
Json transform_options(const Statistics& statistics, const FitOptions& options) {
  Json json = fit_options_json(statistics, options);
  json.erase("bits");
  json.erase("allocate");
  json.erase("max_rows");
  return json;
}

// The hashes of the curves' text, from the bundle that contains the curves; empty if it has none.
Json hashes_beside(const fs::path& file, const Curves& curves) {
  const fs::path path = file.parent_path() / kCalibrationHashesName;
  std::error_code ec;
  if (!fs::exists(path, ec)) return Json::object();
  // The last match: parts of the collection come first and may have the same prompts.
  Json found = Json::object();
  for (const Json& part : calibration_hashes_from_json(read_json(path), path.string())) {
    if (part["prompts"].value("sha256", Json()) == curves.text.value("sha256", Json(""))) found = part["prompts"];
  }
  return found;
}

// The fit without predictions: transforms, and the spread of rows and metric over their channels.
FitResult quick_fit(const Statistics& statistics, const FitOptions& options) {
  FitOptions quick = options;
  quick.max_rows = 0;
  quick.on_step = nullptr;
  return fit(statistics, quick);
}

// Products of the passes that a layer's sides take of one token, in weights: L (L + 1) layers.
double curve_products(const ModelConfig& c) {
  return static_cast<double>(c.layers * (c.layers + 1)) * layer_products(c);
}

// Above it, 8 sequences of 2,048 tokens take more than about ten minutes of two cores with 80 GFLOP/s each.
constexpr double kMostCpuProducts = 4e8;
// curve_products() of all tokens that a model may take for each of its weights: about ten minutes for 135 million.
constexpr double kMostCpuCurves = 6e4;
constexpr double kOneProfile = 0.24;  // of the passes, where only one of a side passes the later layers
constexpr std::array<CurveShape, 4> kCpuShapes{{kFullCurves, {4, 2048}, {6, 1024, kAnchors}, {4, 1024, kAnchors}}};

bool fits_cpu(const ModelConfig& c, const CurveShape& shape) {
  const double weights =
      static_cast<double>(c.layers) * layer_products(c) + static_cast<double>(c.hidden * c.vocabulary);
  const auto tokens = [](const CurveShape& s) {
    return static_cast<double>(s.sequences * s.context) * (s.one() ? kOneProfile : 1.0);
  };
  return curve_products(c) * tokens(shape) <=
         std::max(kMostCpuProducts * tokens(kFullCurves), kMostCpuCurves * weights);
}

// Curves of an earlier run, which must belong to this fit.
Curves read_curves(const Statistics& statistics, const std::string& sha256, const Json& options,
                   const CacheWindows& windows, const std::string& file) {
  Curves curves = curves_from_json(read_json(file), file);
  if (curves.model_fingerprint != statistics.model_fingerprint || curves.statistics_sha256 != sha256) {
    throw InputError(file + ": these curves were measured with other statistics; measure them again (--model, --text)");
  }
  for (const auto& [key, value] : options.items()) {
    if (curves.options.value(key, Json()) == value) continue;
    throw UsageError(file + ": these curves were measured with " + key + " " +
                     printable(curves.options.value(key, Json()).dump(-1, ' ', true)) + ", this fit has " +
                     value.dump() + "; fit with the same options, or measure them again");
  }
  if (curves.sink != windows.sink || curves.recent != windows.recent) {
    throw UsageError(file + ": these curves were measured with --windows " + std::to_string(curves.sink) + "," +
                     std::to_string(curves.recent) + "; fit with the same, or measure them again");
  }
  curves.text_hashes = hashes_beside(file, curves);
  return curves;
}

}  // namespace

double layer_products(const ModelConfig& c) {
  return static_cast<double>(c.hidden * (2 * (c.query_heads + c.kv_heads) * c.head_dim + 3 * c.intermediate));
}

std::string CurveShape::text() const {
  return std::to_string(sequences) + " sequences of " + grouped(context) + " tokens" +
         (one() ? ", one width of a side through all layers" : "");
}

std::string CurveShape::options() const {
  return "--curve-sequences " + std::to_string(sequences) + " --curve-context " + std::to_string(context);
}

CurveShape curve_shape(const CurveArguments& arguments, const ModelConfig& model, at::Device device) {
  CurveShape shape;
  if (device.is_cpu()) {
    const auto* found = std::find_if(kCpuShapes.begin(), kCpuShapes.end(),
                                     [&](const CurveShape& each) { return fits_cpu(model, each); });
    shape = found == kCpuShapes.end() ? kCpuShapes.back() : *found;
  }
  if (arguments.sequences > 0 || arguments.context > 0) shape.profiles = kFullCurves.profiles;
  if (arguments.sequences > 0) shape.sequences = arguments.sequences;
  if (arguments.context > 0) shape.context = arguments.context;
  return shape;
}

DecoderOptions curve_decoding(const CurveArguments& arguments, const CommonOptions& common, const ModelConfig& model,
                              at::Device device) {
  const bool chosen = arguments.auto_dtype || common.dtype == "auto";
  DecoderOptions decoding{choose_dtype(common, device), device, arguments.stream_layers, arguments.stream_layers};
  if (curve_products(model) > kMostCpuProducts) decoding.products = narrow_products(chosen, device);
  return decoding;
}

fs::path curve_directory(const CurveArguments& arguments, const CommonOptions& common) {
  return arguments.work_dir.empty() ? beside_output(common.output, ".curves.work") : fs::path(arguments.work_dir);
}

Checkpoint open_model_of(const Statistics& statistics, const CommonOptions& common) {
  Checkpoint checkpoint = Checkpoint::open(locate_model(common.model, common.revision));
  if (const std::string found = checkpoint.fingerprint(); found != statistics.model_fingerprint) {
    throw InputError("the statistics are of another model than " + common.model + " (fingerprint " +
                     statistics.model_fingerprint + ", found " + found + ")");
  }
  return checkpoint;
}

bool uses_curves(const CurveArguments& a, const CommonOptions& common, const std::string& method) {
  const bool file = !a.file.empty(), allocates = fitted_method(method).allocates_bits;
  const bool text = a.allocate == "auto" && !a.text.empty() && allocates;
  if (a.allocate != "measured" && !file && !text) return false;
  if (!allocates) throw UsageError("measured curves are for --method waterfill, whose widths can be chosen");
  if (a.allocate != "auto" && a.allocate != "measured") {
    throw UsageError("--curves gives measured curves; with --allocate " + a.allocate + " they are not used");
  }
  if (!file && (common.model.empty() || (a.text.empty() && !a.collects))) {
    throw UsageError("measured curves need --model and --text to measure on, or --curves FILE");
  }
  return true;
}

void add_curve_roles(const CurveArguments& arguments, const CommonOptions& common, FileRoles& roles) {
  if (common.model.empty() || (arguments.text.empty() && !arguments.collects)) return;
  roles.inputs({arguments.text.begin(), arguments.text.end()});
  roles.inputs(checkpoint_files(locate_model(common.model, common.revision)));
  for (const char* name : {"lock", "run.json", "removing.json", "points.json"}) {
    roles.output(curve_directory(arguments, common) / name, "--work-dir");
  }
}

MeasuredCurves curves_for(const Statistics& statistics, const std::string& sha256, const FitOptions& options,
                          const CacheWindows& windows, const CommonOptions& common, const CurveArguments& arguments,
                          const std::vector<double>& budgets, bool text_hashes) {
  const Json fit_options = transform_options(statistics, options);
  if (!arguments.file.empty()) {
    Curves curves = read_curves(statistics, sha256, fit_options, windows, arguments.file);
    if (!text_hashes) curves.text_hashes = Json::object();
    return {std::move(curves), nullptr};
  }
  Checkpoint checkpoint = open_model_of(statistics, common);
  CurveText text =
      arguments.loaded ? *arguments.loaded : load_curve_text(checkpoint, options.device, windows, arguments);
  checkpoint.set_run_length(text.length());
  const FitResult fitted = quick_fit(statistics, options);  // no predictions: KL is measured
  const Bundle bundle = bundle_from_fit(statistics, options, fitted, windows, {});
  ProfilePredictions predictions;
  for (const LayerFit& layer : fitted.layers) {
    predictions.key.push_back(layer.key_spectrum.profile_errors);
    predictions.value.push_back(layer.value_spectrum.profile_errors);
  }
  DecoderOptions decoding = curve_decoding(arguments, common, checkpoint.config(), options.device);
  if (decoding.narrow_products())
    log_info("curves: products with weights in BF16, all else in FP32 (--dtype float32 keeps them in FP32, too)");
  require_alike(arguments.ranks, options.device);
  Decoder decoder(checkpoint, decoding);
  Curves facts{.model_fingerprint = statistics.model_fingerprint,
               .statistics_sha256 = sha256,
               .tool_version = tool_version(),
               .options = fit_options,
               .text = std::move(text.record)};
  if (text_hashes) facts.text_hashes = std::move(text.hashes);
  CurveRequest request{.sequences = std::move(text.sequences), .windows = windows, .target_kl = arguments.target_kl};
  if (!request.target_kl) request.budgets = budgets;
  const CurveShape shape = curve_shape(arguments, checkpoint.config(), options.device);
  request.profiles = shape.profiles, request.one = shape.one(), request.timeline = options.timeline;
  request.work_dir = curve_directory(arguments, common);
  request.resume = arguments.resume;
  request.resume_command = arguments.resume_command;
  request.tool_version = tool_version();
  request.ranks = arguments.ranks;
  return measure_curves(std::move(facts), bundle, predictions, decoder, request);
}

CurveText load_curve_text(const Checkpoint& checkpoint, at::Device device, const CacheWindows& windows,
                          const CurveArguments& arguments, const PromptSet* prompts, const std::string& prompts_name) {
  const CurveShape shape = curve_shape(arguments, checkpoint.config(), device);
  const fs::path& directory = checkpoint.location().directory;
  const LazyTokenizer tokenizer(directory / "tokenizer.json");
  if (arguments.text.empty()) {
    return curve_text(*prompts, prompts_name, shape.context, shape.sequences, checkpoint.config(), tokenizer, windows);
  }
  std::vector<fs::path> files(arguments.text.begin(), arguments.text.end());
  const PromptSet found =
      load_prompts(files, tokenizer, arguments.rows.chat_template(directory), checkpoint.config().vocabulary,
                   {.skip_bad_rows = false, .column = arguments.rows.options.column});
  for (const std::string& note : reading_notes(found)) log_info(note);
  std::string name;
  for (const fs::path& file : files) name += (name.empty() ? "" : ", ") + utf8_text(file.filename().string());
  return curve_text(found, name, shape.context, shape.sequences, checkpoint.config(), tokenizer, windows);
}

std::string curve_choice_text(const CurvePlan& plan) {
  if (!plan.chosen) return {};
  return "curves on " + plan.shape.text() + ", because a CPU would take long for " + kFullCurves.text() +
         ": the KL is about a tenth higher";
}

CurvePlan plan_curves(const Checkpoint& checkpoint, at::Device device, const CommonOptions& common,
                      const CurveArguments& arguments, const CurveText& text, const CacheWindows& windows,
                      std::size_t budgets) {
  CurvePlan plan;
  plan.shape = curve_shape(arguments, checkpoint.config(), device);
  plan.chosen = arguments.sequences == 0 && arguments.context == 0 && plan.shape.options() != kFullCurves.options();
  plan.shape.sequences = std::ssize(text.sequences);
  plan.shape.context = std::ssize(text.sequences.front());
  plan.budgets = budgets;
  plan.windows = windows;
  plan.decoding = curve_decoding(arguments, common, checkpoint.config(), device);
  plan.most_passes = most_curve_passes(checkpoint.config(), plan.shape.sequences, static_cast<std::int64_t>(budgets),
                                       plan.shape.profiles, plan.shape.one());
  plan.needed = arguments.target_kl.has_value();
  plan.memory_bytes = CurvePasses::memory_bytes(checkpoint.config(), plan.decoding, plan.shape.sequences,
                                                plan.shape.context, static_cast<std::int64_t>(kAnchors));
  return plan;
}

}  // namespace oscar
