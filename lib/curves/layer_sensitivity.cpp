#include "curves/layer_sensitivity.h"

#include <ATen/ATen.h>

#include <cmath>

#include "attention/cached_attention.h"
#include "base/errors.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "curves/profile_attention.h"
#include "rotation/block_widths.h"
#include "text/sequences.h"

namespace oscar {
namespace {

// Exact attention, beside which every layer's outputs with all pairs of widths are compared to its own.
class PairErrors : public Attention {
 public:
  PairErrors(const std::vector<KvMethod>& methods, std::int64_t layers, std::int64_t first_position)
      : methods_(methods),
        first_position_(first_position),
        sums_(static_cast<std::size_t>(layers), std::vector<double>(methods.size(), 0.0)) {}

  at::Tensor attend(const AttentionInput& input) override {
    const at::Tensor exact = exact_.attend(input);
    const auto scored = [&](const at::Tensor& out) { return out.slice(0, first_position_).to(at::kDouble); };
    const at::Tensor base = scored(exact), size = base.norm(2, -1).clamp_min_(1e-30);
    std::vector<double>& sums = sums_[static_cast<std::size_t>(input.layer)];
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      const at::Tensor out = SimulatedPrefillAttention(methods_[m]).attend(input);
      sums[m] += ((scored(out) - base).norm(2, -1) / size).mean().item<double>();
    }
    return exact;
  }

  // Means over `sequences` of equal length.
  Sensitivities means(std::size_t sequences) const {
    Sensitivities means = sums_;
    for (std::size_t layer = 0; layer < means.size(); ++layer) {
      for (double& mean : means[layer]) {
        mean /= static_cast<double>(sequences);
        if (!std::isfinite(mean)) {
          throw NumericalError("the attention output of layer " + std::to_string(layer) + " holds NaN or infinity");
        }
      }
    }
    return means;
  }

 private:
  const std::vector<KvMethod>& methods_;
  std::int64_t first_position_;
  Sensitivities sums_;
  ExactCacheAttention exact_;
};

double mean_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

KvMethod whole_width_method(const Bundle& bundle, const ModelConfig& model, const CacheWindows& windows,
                            std::uint8_t key, std::uint8_t value) {
  Bundle whole = bundle;
  for (LayerTransform& layer : whole.layers) {
    set_block_widths(layer, {key, key, key, key}, {value, value, value, value});
  }
  return make_method(whole.method, model, &whole, windows);
}

Sensitivities tied_layer_kl(Decoder& decoder, const Bundle& bundle, const SensitivityRequest& request) {
  const std::int64_t layers = decoder.config().kv_layers();
  const auto passes_of = [&](std::int64_t times) {
    return static_cast<std::uint64_t>(times * std::ssize(request.sequences));
  };
  Progress progress("sensitivities", passes_of(layers + std::ssize(kWholeWidths) * layers * (layers + 1) / 2),
                    "passes");
  CurvePasses passes(decoder, request.sequences, request.windows, [&](std::uint64_t n) { progress.advance(n); });
  Sensitivities kl(static_cast<std::size_t>(layers));
  for (const std::uint8_t width : kWholeWidths) {
    const KvMethod method = whole_width_method(bundle, decoder.config(), request.windows, width, width);
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      kl[static_cast<std::size_t>(layer)].push_back(mean_of(passes.measure_layer(method, layer)));
    }
  }
  progress.finish();
  return kl;
}

Sensitivities pair_output_errors(Decoder& decoder, const Bundle& bundle, const SensitivityRequest& request) {
  const std::int64_t layers = decoder.config().layers;
  std::vector<KvMethod> methods;
  for (const std::uint8_t key : kWholeWidths) {
    for (const std::uint8_t value : kWholeWidths) {
      methods.push_back(whole_width_method(bundle, decoder.config(), request.windows, key, value));
    }
  }
  PairErrors errors(methods, decoder.config().kv_layers(), first_scored_position(request.windows));
  std::vector<at::Tensor> hidden;
  for (const std::vector<std::int32_t>& ids : request.sequences) hidden.push_back(decoder.embed(ids));
  Progress progress("sensitivities", static_cast<std::uint64_t>(layers * std::ssize(hidden)), "passes");
  for (std::int64_t layer = 0; layer < layers; ++layer) {  // layers outside: weights may be streamed
    for (at::Tensor& h : hidden) {
      if (interrupt_requested()) throw InterruptedError("interrupted while attention outputs were compared");
      h = decoder.run_layer(layer, h, {{0}, {h.size(0)}, {0}}, errors);
      progress.advance(1);
    }
  }
  progress.finish();
  return errors.means(hidden.size());
}

}  // namespace oscar
