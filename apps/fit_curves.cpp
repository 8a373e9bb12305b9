#include "apps/fit_curves.h"

#include <ATen/ATen.h>

#include "apps/device_choice.h"
#include "base/errors.h"
#include "bundle/from_fit.h"
#include "checkpoint/checkpoint.h"
#include "curves/curve_passes.h"
#include "curves/curve_text.h"
#include "curves/measure_curves.h"
#include "text/prompts.h"

namespace oscar {
namespace {

// Options of the fit that transforms depend on: everything but how bits are shared out.
Json transform_options(const Statistics& statistics, const FitOptions& options) {
  Json json = fit_options_json(statistics, options);
  json.erase("bits");
  json.erase("max_rows");
  return json;
}

Checkpoint open_model(const Statistics& statistics, const CommonOptions& common) {
  Checkpoint checkpoint = Checkpoint::open(locate_model(common.model, common.revision));
  if (checkpoint.fingerprint() != statistics.model_fingerprint) {
    throw InputError("the statistics are of another model than " + common.model + " (fingerprint " +
                     statistics.model_fingerprint + ", found " + checkpoint.fingerprint() + ")");
  }
  return checkpoint;
}

CurveText load_curve_text(const Checkpoint& checkpoint, const Windows& windows, const CurveArguments& arguments) {
  const fs::path& directory = checkpoint.location().directory;
  const Tokenizer tokenizer = Tokenizer::from_file(directory / "tokenizer.json");
  std::vector<fs::path> files(arguments.text.begin(), arguments.text.end());
  const PromptSet prompts =
      load_prompts(files, tokenizer, ChatTemplate::from_model(directory), checkpoint.config().vocabulary);
  std::string name;
  for (const fs::path& file : files) name += (name.empty() ? "" : ", ") + file.filename().string();
  return curve_text(prompts, name, arguments.context, arguments.sequences, checkpoint.config().max_position, tokenizer,
                    {windows.sink, windows.recent, 1});
}

// Curves of an earlier run, which must be of this fit.
Curves read_curves(const Statistics& statistics, const std::string& sha256, const Json& options, const Windows& windows,
                   const std::string& file) {
  Curves curves = curves_from_json(read_json(file), file);
  if (curves.model_fingerprint != statistics.model_fingerprint || curves.statistics_sha256 != sha256) {
    throw InputError(file + ": these curves were measured with other statistics; measure them again (--model, --text)");
  }
  for (const auto& [key, value] : options.items()) {
    if (curves.options.value(key, Json()) == value) continue;
    throw UsageError(file + ": these curves were measured with " + key + " " +
                     curves.options.value(key, Json()).dump() + ", this fit has " + value.dump() +
                     "; fit with the same options, or measure them again");
  }
  if (curves.sink != windows.sink || curves.recent != windows.recent) {
    throw UsageError(file + ": these curves were measured with --windows " + std::to_string(curves.sink) + "," +
                     std::to_string(curves.recent) + "; fit with the same, or measure them again");
  }
  return curves;
}

}  // namespace

bool uses_curves(const CurveArguments& a, const CommonOptions& common, const std::string& method) {
  const bool model = !common.model.empty(), file = !a.file.empty();
  if (method != "waterfill") {
    if (a.allocate == "measured" || file) {
      throw UsageError("measured curves are for --method waterfill, whose widths can be chosen");
    }
    return false;
  }
  if (a.allocate == "closed") {
    if (file) throw UsageError("--curves gives measured curves; with --allocate closed they are not used");
    return false;
  }
  if (a.allocate == "measured" && !model && !file) {
    throw UsageError("--allocate measured needs --model and --text to measure on, or --curves FILE");
  }
  if (model && !file && a.text.empty()) {
    throw UsageError("--model needs --text, calibration text to measure the curves on (or pass --allocate closed)");
  }
  if (!model && !a.text.empty()) throw UsageError("--text needs --model, the model that the statistics are of");
  return model || file;
}

Curves curves_for(const Statistics& statistics, const std::string& sha256, const FitOptions& options,
                  const Windows& windows, const CommonOptions& common, const CurveArguments& arguments) {
  const Json fit_options = transform_options(statistics, options);
  if (!arguments.file.empty()) return read_curves(statistics, sha256, fit_options, windows, arguments.file);
  const Checkpoint checkpoint = open_model(statistics, common);
  CurveText text = load_curve_text(checkpoint, windows, arguments);
  FitOptions quick = options;
  quick.max_rows = 0;  // no predictions: KL is measured
  quick.on_step = nullptr;
  const FitResult fitted = fit(statistics, quick);
  const Bundle bundle = bundle_from_fit(statistics, quick, fitted, windows, {});
  ProfilePredictions predictions;
  for (const LayerFit& layer : fitted.layers) {
    predictions.key.push_back(layer.key_spectrum.profile_errors);
    predictions.value.push_back(layer.value_spectrum.profile_errors);
  }
  Decoder decoder(checkpoint, {choose_dtype(common, options.device), options.device, arguments.stream_layers});
  Curves facts;
  facts.model_fingerprint = statistics.model_fingerprint;
  facts.statistics_sha256 = sha256;
  facts.tool_version = tool_version();
  facts.options = fit_options;
  facts.text = std::move(text.record);
  CurveRequest request;
  request.sequences = std::move(text.sequences);
  request.windows = windows;
  fs::path output = common.output;
  if (output.filename().empty()) output = output.parent_path();  // "bundle/"
  request.work_dir = arguments.work_dir.empty() ? output.string() + ".curves.work" : arguments.work_dir;
  request.resume = arguments.resume;
  request.resume_command = arguments.resume_command;
  request.tool_version = tool_version();
  return measure_curves(std::move(facts), bundle, predictions, decoder, request);
}

CurvePlan plan_curves(const Statistics& statistics, const FitOptions& options, const Windows& windows,
                      const CommonOptions& common, const CurveArguments& arguments) {
  const Checkpoint checkpoint = open_model(statistics, common);
  const CurveText text = load_curve_text(checkpoint, windows, arguments);
  CurvePlan plan;
  plan.sequences = std::ssize(text.sequences);
  plan.context = std::ssize(text.sequences.front());
  plan.most_passes = most_curve_passes(checkpoint.config().layers, plan.sequences);
  plan.memory_bytes = CurvePasses::memory_bytes(checkpoint.config(), choose_dtype(common, options.device),
                                                plan.sequences, plan.context, 8);
  return plan;
}

}  // namespace oscar
