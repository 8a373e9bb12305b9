#include "apps/fit_allocator.h"

#include <ATen/ATen.h>

#include <set>
#include <stdexcept>

#include "apps/options/device_choice.h"
#include "base/errors.h"
#include "bundle/curve_allocation.h"
#include "bundle/from_fit.h"
#include "curves/gradient_sensitivity.h"
#include "model/decoder.h"
#include "registry/registry.h"
#include "rotation/fit_sensitivity.h"

namespace oscar {
namespace {

// Those of an allocator that runs the model.
Sensitivities text_sensitivities(const AllocatorRow& allocator, Decoder& decoder, const Bundle& bundle,
                                 const SensitivityRequest& request) {
  switch (allocator.measure) {
    case AllocatorMeasure::kTiedLayerKl:
      return tied_layer_kl(decoder, bundle, request);
    case AllocatorMeasure::kPairOutputErrors:
      return pair_output_errors(decoder, bundle, request);
    case AllocatorMeasure::kFirstOrderScores:
      return first_order_scores(decoder, bundle, request);
    case AllocatorMeasure::kWeightGradientNorms:
      return weight_gradient_norms(decoder, request);
    default:
      break;
  }
  throw std::logic_error("allocator " + allocator.id + " has no sensitivities");
}

// Squared Frobenius norms of W_K and W_V, layer by layer.
Sensitivities squared_weight_norms(const Statistics& statistics, const CommonOptions& common) {
  const Checkpoint checkpoint = open_model_of(statistics, common);
  Decoder decoder(checkpoint, {.stream_layers = true});
  std::set<std::int64_t> fitted;
  for (std::size_t i = 0; i < statistics.layers.size(); ++i) fitted.insert(statistics.number(i));
  Sensitivities norms;
  for (std::int64_t layer = 0; layer < checkpoint.config().layers; ++layer) {
    if (!fitted.contains(layer)) continue;
    const LayerWeights& weights = decoder.layer_weights(layer);
    for (const at::Tensor& w : {weights.k, weights.v.defined() ? weights.v : weights.k}) {
      norms.push_back({w.to(at::kDouble).square().sum().item<double>()});
    }
  }
  return norms;
}

// Without layers that the fit leaves out: of [layers] or [layers x 2] what belongs to the others.
Sensitivities of_fitted_layers(Sensitivities found, const ModelConfig& model, const Statistics& statistics) {
  const std::size_t each = found.size() / static_cast<std::size_t>(model.kv_layers());
  Sensitivities kept;
  for (std::size_t i = 0; i < statistics.layers.size(); ++i) {
    const auto place = static_cast<std::size_t>(model.kv_place(statistics.number(i)));
    for (std::size_t side = 0; side < each; ++side) kept.push_back(std::move(found[each * place + side]));
  }
  return kept;
}

}  // namespace

const AllocatorRow* asked_allocator(const CurveArguments& a, const CommonOptions& common, const std::string& method) {
  const AllocatorRow* row = find_allocator(a.allocate);
  if (row == nullptr) return nullptr;
  const std::string name = "--allocate " + row->id;
  if (!fitted_method(method).allocates_bits) {
    throw UsageError(name + " is for --method waterfill, whose widths can be chosen");
  }
  if (row->input == AllocatorInput::kWeights && common.model.empty()) {
    throw UsageError(name + " reads the weights of the model: add --model");
  }
  if (row->input == AllocatorInput::kText && (common.model.empty() || (a.text.empty() && !a.collects))) {
    throw UsageError(name + " runs the model on calibration text: add --model and --text");
  }
  return row;
}

WidthSource allocator_source(const AllocatorRow& allocator, const Statistics& statistics, const FitOptions& options,
                             const CacheWindows& windows, const CommonOptions& common,
                             const CurveArguments& arguments) {
  WidthSource source{std::nullopt, &allocator, {}, Json::object()};
  switch (allocator.input) {
    case AllocatorInput::kStatistics:
      source.sensitivities = fit_sensitivities(allocator, statistics, quick_fit(statistics, options));
      break;
    case AllocatorInput::kWeights:
      source.sensitivities = squared_weight_norms(statistics, common);
      break;
    case AllocatorInput::kText: {
      Checkpoint checkpoint = open_model_of(statistics, common);
      CurveText text = arguments.loaded ? *arguments.loaded : load_curve_text(checkpoint, windows, arguments);
      checkpoint.set_run_length(text.length());
      source.text_hashes = std::move(text.hashes);
      Decoder decoder(checkpoint, {choose_dtype(common, options.device), options.device, arguments.stream_layers});
      const Bundle bundle = bundle_from_fit(statistics, options, quick_fit(statistics, options), windows, {});
      source.sensitivities =
          of_fitted_layers(text_sensitivities(allocator, decoder, bundle, {std::move(text.sequences), windows}),
                           checkpoint.config(), statistics);
      break;
    }
  }
  return source;
}

std::optional<PredictedKl> set_widths(const WidthSource& source, std::int64_t head_dim, FitOptions& options) {
  if (source.measured) {
    const CurveAllocation widths = allocate_curves(source.measured->curves, options.bits);
    options.key_profiles = widths.key;
    options.value_profiles = widths.value;
    return widths.predicted;
  }
  if (source.allocator != nullptr) {
    const Allocation widths =
        source.allocator->allocate(source.sensitivities, static_cast<int>(head_dim), options.bits);
    options.key_profiles = widths.key;
    options.value_profiles = widths.value;
  }
  return std::nullopt;
}

std::string allocator_help() {
  std::string text;
  for (const AllocatorRow& row : allocators()) text += "\n  " + row.id + ": " + row.source + ", " + row.summary;
  return text;
}

}  // namespace oscar
