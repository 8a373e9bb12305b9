#include "fit/layer_fits.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/formatted.h"
#include "fit/key_center.h"
#include "fit/metric_fit.h"
#include "fit/waterfill.h"
#include "registry/registry.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

constexpr double kMostlyMean = 0.2;  // largest share of the keys' weight without their mean before RoPE

// Both sides of all layers.
struct MetricModel {
  std::vector<MetricSide> key, value;    // [layer]
  std::vector<SideMoments> key_moments;  // [layer]
};

// profiles: whose errors are predicted.
SideSpectrum spectrum(const MetricSide& side, std::int64_t head_dim, const std::vector<Widths>& profiles) {
  SideSpectrum out;
  const at::Tensor mean = side.lambda.mean(0);
  const std::int64_t parts = head_dim % kBands == 0 ? kBands : 1, n = head_dim / parts;
  for (std::int64_t b = 0; b < parts; ++b) out.lambda.push_back(mean.narrow(0, b * n, n).mean().item<double>());
  out.gain = side.gain;
  out.check = side.check;
  for (const double condition : side.conditions) out.condition = std::max(out.condition, condition);
  if (side.transform.blocks()) {
    const auto& w = side.transform.widths;
    out.error = predicted_error(side.energy, {w[0], w[1], w[2], w[3], side.transform.refined});
    for (const Widths& widths : profiles) out.profile_errors.push_back(predicted_error(side.energy, widths));
  } else {
    double mean_square = 0.0;  // one block of d channels at 2 bits
    for (std::int64_t h = 0; h < side.lambda.size(0); ++h) {
      const double m = side.lambda[h].mean().item<double>();
      mean_square +=
          m * m * logit_noise_factor(logit_noise(side.energy.heads[static_cast<std::size_t>(h)], {2, 2, 2, 2}));
    }
    out.error = band_distortion(2) * static_cast<double>(head_dim) * mean_square / side.residual;
  }
  return out;
}

void set_widths(MetricSide& side, const Widths& widths) {
  set_block_widths(side.transform, widths, side.lambda.size(0));
}

const std::vector<Widths>& profiles_of(const Statistics& s) {
  return s.rope_dim > 0 ? latent_profiles() : falling_profiles();
}

MetricModel fit_metric(const Statistics& s, const FitOptions& o, std::vector<std::string>& warnings) {
  const bool blocks = fitted_method(o.method).allocates_bits;
  MetricModel model;
  model.key_moments = fitted_moments(s, o, Side::kKey, blocks);
  model.key = fit_metric_side(s, o, Side::kKey, blocks, model.key_moments, warnings);
  const bool latent = s.rope_dim > 0;  // the sides are then equal and take bits once
  model.value = latent
                    ? model.key
                    : fit_metric_side(s, o, Side::kValue, blocks, fitted_moments(s, o, Side::kValue, blocks), warnings);
  if (!o.key_profiles.empty()) {
    for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
      set_widths(model.key[layer], o.key_profiles[layer]);
      set_widths(model.value[layer], o.value_profiles[layer]);
    }
  } else if (blocks) {
    std::vector<SideEnergy> key, value;
    for (const MetricSide& side : model.key) key.push_back(side.energy);
    for (std::size_t i = 0; i < model.value.size() && !latent; ++i) value.push_back(model.value[i].energy);
    const Allocation allocation = waterfill(key, value, static_cast<int>(s.head_dim), o.bits, profiles_of(s));
    for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
      set_widths(model.key[layer], allocation.key[layer]);
      set_widths(model.value[layer], (latent ? allocation.key : allocation.value)[layer]);
    }
  }
  return model;
}

// Warns of keys with large biases: most of their variation is their mean before RoPE, rotated to each position.
void note_rotating_mean(const Statistics& s, const FitOptions& o, const std::vector<SideMoments>& moments,
                        std::vector<std::string>& warnings) {
  if (o.center != Center::kMean || !can_rotate_means(s) || o.context == 0) return;
  double least = 1.0;
  for (const double gain : rotated_mean_gains(s, o, moments)) least = std::min(least, std::max(gain, 0.0));
  if (least > kMostlyMean) return;
  warnings.push_back(formatted(
      "in one layer %.1f%% of what keys weigh is their mean before RoPE (biases): --center rope stores them without it",
      100.0 * (1.0 - least)));
}

// Warns of statistics that lack the moments for these methods.
void note_missing_metrics(FitResult& result) {
  if (!result.far) {
    result.warnings.push_back(
        "the statistics hold no metrics of query-key pairs outside the windows: Q^T Q and W_O^T W_O take their place, "
        "and layers are weighed by them; collect again with sequences longer than both windows");
  }
}

// Window or chunk of the layer at this index of the statistics; 0: it sees all tokens, or nothing is recorded.
std::int64_t span_of(const Statistics& s, std::size_t place) {
  if (!s.metadata.is_object()) return 0;
  const auto geometry = s.metadata.find("geometry");
  if (geometry == s.metadata.end() || !geometry->is_array()) return 0;
  for (const Json& entry : *geometry) {
    if (!entry.is_object() || entry.value("layer", Json()) != s.number(place)) continue;
    for (const char* key : {"sliding_window", "chunk"}) {
      const Json span = entry.value(key, Json(0));
      if (span.is_number_integer() && span > 0) return span.get<std::int64_t>();
    }
  }
  return 0;
}

// Warns of layers that read the full context although their keys and values all decode to their means.
void note_layers_without_bits(const Statistics& s, const MetricModel& model, std::vector<std::string>& warnings) {
  const auto none = [](const MetricSide& side) {
    const auto& widths = side.transform.widths;
    return side.transform.blocks() && std::all_of(widths.begin(), widths.end(), [](auto w) { return w == 0; });
  };
  std::string layers;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < model.key.size(); ++i) {
    if (!none(model.key[i]) || !none(model.value[i]) || span_of(s, i) > 0) continue;
    layers += (count++ == 0 ? "" : ", ") + std::to_string(s.number(i));
  }
  if (count == 0) return;
  warnings.push_back((count == 1 ? "layer " : "layers ") + layers + (count == 1 ? " gets" : " get") +
                     " no bits, so every coded key and value there reads as the mean of its head; compare with more "
                     "--bits, or measure the curves (--model with --text)");
}

void describe(const MetricModel& model, const Statistics& s, FitResult& result) {
  double total = 0.0;
  for (std::size_t layer = 0; layer < result.layers.size(); ++layer) {
    LayerFit& out = result.layers[layer];
    out.key_spectrum = spectrum(model.key[layer], s.head_dim, profiles_of(s));
    out.value_spectrum = spectrum(model.value[layer], s.head_dim, profiles_of(s));
    if (s.rope_dim > 0) out.value_spectrum.error = 0.0;  // latent attention: part of the keys'
    total += out.key_spectrum.error + out.value_spectrum.error;
  }
  for (LayerFit& layer : result.layers) {
    for (SideSpectrum* side : {&layer.key_spectrum, &layer.value_spectrum}) {
      side->share = total > 0.0 ? side->error / total : 0.0;
    }
  }
}

}  // namespace

void fit_balanced(const Statistics& s, const FitOptions& o, FitResult& result) {
  const MetricModel model = fit_metric(s, o, result.warnings);
  note_rotating_mean(s, o, model.key_moments, result.warnings);
  note_missing_metrics(result);
  note_layers_without_bits(s, model, result.warnings);
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    result.layers.emplace_back().transform = {static_cast<std::int64_t>(layer), s.head_dim, s.kv_heads,
                                              model.key[layer].transform, model.value[layer].transform};
  }
  describe(model, s, result);
}

}  // namespace oscar
