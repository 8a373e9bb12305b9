#include "rotation/fit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>

#include "base/errors.h"
#include "moments/pre_rope_moments.h"
#include "rotation/eigen.h"
#include "rotation/feedback_metric.h"
#include "rotation/fit_rows.h"
#include "rotation/for_each_head.h"
#include "rotation/metric_fit.h"
#include "rotation/predict.h"
#include "rotation/transforms.h"

namespace oscar {
namespace {

constexpr double kMostlyMean = 0.2;       // of the keys' weight may remain without their mean before RoPE
constexpr std::int64_t kFewestRows = 16;  // in each half; below that a search would fit noise

void check_options(const Statistics& s, const FitOptions& o) {
  if (s.head_dim > kMaxHeadDim) {
    throw InputError("head_dim " + std::to_string(s.head_dim) + " is beyond the codec's " +
                     std::to_string(kMaxHeadDim));
  }
  if (o.group < 0 || (o.group > 0 && s.head_dim % o.group != 0)) {
    throw UsageError("group " + std::to_string(o.group) + " does not divide head_dim " + std::to_string(s.head_dim));
  }
  const auto ratio = [](float rho) { return rho >= 0.0f && rho <= 1.0f; };
  if ((o.method == "waterfill" || !o.key_widths.empty()) && s.head_dim % 32 != 0) {
    throw UsageError("block widths need a head_dim that 32 divides; found " + std::to_string(s.head_dim) +
                     ": fit with --method balanced");
  }
  if ((o.method == "waterfill" || !o.key_widths.empty()) && o.clip != ClipMode::kNone) {
    throw UsageError("block widths take no clip: pass --clip none");
  }
  for (const std::vector<Widths>* profiles : {&o.key_profiles, &o.value_profiles}) {
    const bool given = !o.key_profiles.empty() || !o.value_profiles.empty();
    if (given && (o.method != "waterfill" || profiles->size() != s.layers.size())) {
      throw UsageError("chosen widths are for --method waterfill, and for all of its layers");
    }
  }
  if (!o.key_widths.empty() && o.method != "balanced") {
    throw UsageError("fixed block widths are for --method balanced; " + o.method + " does not take them");
  }
  if (o.method == "waterfill" && !s.layers.front().attention_residual.defined()) {
    throw InputError(
        "the statistics are of format 1, which measured the residual stream after the MLP: method waterfill would give "
        "the wrong layers their bits; collect the statistics again with this version (methods oscar and balanced still "
        "take these)");
  }
  if (o.context < 0) throw UsageError("--context " + std::to_string(o.context) + " is no number of tokens");
  if (o.center == Center::kRope && find_transform(o.method).metric_aware && o.context == 0) {
    throw UsageError("--center rope is fitted to the positions of a context: pass a --context above 0");
  }
  if (o.clip == ClipMode::kFixed && (!ratio(o.key_clip) || !ratio(o.value_clip))) {
    throw UsageError("a clip ratio lies between 0 (off) and 1");
  }
}

// One side of all layers: targets, eigenvectors, transforms.
struct FittedSide {
  std::vector<at::Tensor> heads;    // [layer] [Hkv, d, d] each head's own moment
  std::vector<at::Tensor> vectors;  // [layer] [S, d, d]; undefined when data-free
  std::vector<SideTransform> transforms;
};

FittedSide fit_side(const Statistics& s, const FitOptions& o, Side side, std::vector<std::string>& warnings) {
  const TransformKind& kind = find_transform(o.method);
  FittedSide result;
  std::vector<at::Tensor> targets;
  std::vector<std::string> names;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    result.heads.push_back(head_moments(s, layer, side, o.value_target));
    targets.push_back(scope_moments(result.heads.back(), o.scope));
    for (std::string& name :
         target_names(static_cast<std::int64_t>(layer), side, o.value_target, o.scope, s.kv_heads)) {
      names.push_back(std::move(name));
    }
  }
  SymmetricEigen eigen;
  const at::Tensor all = at::cat(targets);  // [L S, d, d]
  if (!kind.data_free) {
    const at::Tensor traces = all.diagonal(0, -2, -1).sum(-1);
    for (std::int64_t n = 0; n < all.size(0); ++n) {
      if (traces[n].item<double>() == 0.0) {
        warnings.push_back(names[static_cast<std::size_t>(n)] + ": is all zero; its rotation is the Hadamard matrix");
      }
    }
    eigen = symmetric_eigen(all, names, o.device);
  }
  const std::int64_t each = targets.front().size(0);
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    SideInput input{side, targets[layer], {}, {}};
    if (!kind.data_free) {
      input.values = eigen.values.narrow(0, static_cast<std::int64_t>(layer) * each, each);
      input.vectors = eigen.vectors.narrow(0, static_cast<std::int64_t>(layer) * each, each);
    }
    result.vectors.push_back(input.vectors);
    result.transforms.push_back(kind.build(input));
  }
  return result;
}

// The mean of each head, for orthogonal transforms that store centred rows.
void centre(const Statistics& s, Side side, bool rotated, std::vector<SideTransform>& transforms) {
  const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    const LayerMoments& m = s.layers[layer];
    if (rotated) {
      transforms[layer].mean = pre_rope_key_mean(s, layer).to(at::kFloat).contiguous();
      transforms[layer].rotated_mean = true;
      continue;
    }
    transforms[layer].mean = ((side == Side::kKey ? m.k_sum : m.v_sum) / tokens).to(at::kFloat).contiguous();
  }
}

// Metric-aware methods: transforms, and for layout blocks the widths.
struct MetricModel {
  std::vector<MetricSide> key, value;
};

SideSpectrum spectrum(const MetricSide& side, std::int64_t head_dim) {
  SideSpectrum out;
  const at::Tensor mean = side.lambda.mean(0);
  const std::int64_t parts = head_dim % kBlocks == 0 ? kBlocks : 1, n = head_dim / parts;
  for (std::int64_t b = 0; b < parts; ++b) out.lambda.push_back(mean.narrow(0, b * n, n).mean().item<double>());
  out.gain = side.gain;
  out.check = side.check;
  for (const double condition : side.conditions) out.condition = std::max(out.condition, condition);
  if (side.transform.blocks()) {
    const auto& w = side.transform.widths;
    out.error = predicted_error(side.energy, {w[0], w[1], w[2], w[3]});
    for (const Widths& widths : falling_profiles()) out.profile_errors.push_back(predicted_error(side.energy, widths));
  } else {
    double mean_square = 0.0;  // one block of d channels at 2 bits
    for (std::int64_t h = 0; h < side.lambda.size(0); ++h) {
      const double m = side.lambda[h].mean().item<double>();
      mean_square +=
          m * m * logit_noise_factor(logit_noise(side.energy.heads[static_cast<std::size_t>(h)], {2, 2, 2, 2}));
    }
    out.error = block_distortion(2) * static_cast<double>(head_dim) * mean_square / side.residual;
  }
  return out;
}

void set_widths(MetricSide& side, const Widths& widths) {
  side.transform.widths.assign(widths.begin(), widths.end());
  side.transform.sigma = at::ones({side.lambda.size(0), kBlocks}, at::kFloat);  // the transform has unit blocks
}

Widths as_widths(const std::vector<std::uint8_t>& w) { return {w[0], w[1], w[2], w[3]}; }

MetricModel fit_metric(const Statistics& s, const FitOptions& o, std::vector<std::string>& warnings) {
  const bool allocate = o.method == "waterfill", blocks = allocate || !o.key_widths.empty();
  MetricModel model;
  model.key = fit_metric_side(s, o, Side::kKey, blocks, warnings);
  model.value = fit_metric_side(s, o, Side::kValue, blocks, warnings);
  if (allocate && !o.key_profiles.empty()) {
    for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
      set_widths(model.key[layer], o.key_profiles[layer]);
      set_widths(model.value[layer], o.value_profiles[layer]);
    }
  } else if (allocate) {
    std::vector<SideEnergy> key, value;
    for (const MetricSide& side : model.key) key.push_back(side.energy);
    for (const MetricSide& side : model.value) value.push_back(side.energy);
    const Allocation allocation = waterfill(key, value, static_cast<int>(s.head_dim), o.bits);
    for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
      set_widths(model.key[layer], allocation.key[layer]);
      set_widths(model.value[layer], allocation.value[layer]);
    }
  } else if (blocks) {
    for (MetricSide& side : model.key) set_widths(side, as_widths(o.key_widths));
    for (MetricSide& side : model.value) set_widths(side, as_widths(o.value_widths));
  }
  return model;
}

// Keys with large biases: most of how they vary is their mean before RoPE, turned to each position.
void note_rotating_mean(const Statistics& s, const FitOptions& o, std::vector<std::string>& warnings) {
  if (o.center != Center::kMean || !has_pre_rope(s) || o.context == 0) return;
  double plain = 0.0, rotated = 0.0;  // what errors as large as the rows would cost
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    const double power = residual_power(s, layer);
    for (const bool turned : {false, true}) {
      const SideMoments m = side_moments(s, layer, Side::kKey, moment_choice(o, o.value_target, true, turned));
      (turned ? rotated : plain) += (m.covariance * m.metric).sum().item<double>() / power;
    }
  }
  if (!(plain > 0.0) || rotated > kMostlyMean * plain) return;
  char text[200];
  std::snprintf(text, sizeof text,
                "%.1f%% of what keys weigh is their mean before RoPE (biases): --center rope stores them without it, "
                "for caches on the CPU",
                100.0 * (1.0 - std::max(rotated, 0.0) / plain));
  warnings.push_back(text);
}

std::vector<SideTransform> transforms_of(const std::vector<MetricSide>& sides) {
  std::vector<SideTransform> transforms;
  for (const MetricSide& side : sides) transforms.push_back(side.transform);
  return transforms;
}

void describe(const MetricModel& model, std::int64_t head_dim, FitResult& result) {
  double total = 0.0;
  for (std::size_t layer = 0; layer < result.layers.size(); ++layer) {
    LayerFit& out = result.layers[layer];
    out.key_spectrum = spectrum(model.key[layer], head_dim);
    out.value_spectrum = spectrum(model.value[layer], head_dim);
    total += out.key_spectrum.error + out.value_spectrum.error;
  }
  for (LayerFit& layer : result.layers) {
    for (SideSpectrum* side : {&layer.key_spectrum, &layer.value_spectrum}) {
      side->share = total > 0.0 ? side->error / total : 0.0;
    }
  }
}

void set_clip(std::vector<SideTransform>& transforms, float rho) {
  for (SideTransform& transform : transforms) {
    for (float& clip : transform.clip) clip = rho;
  }
}

void note_rank(const Statistics& s, std::vector<std::string>& warnings) {
  if (s.tokens < s.head_dim) {
    warnings.push_back("the statistics hold " + std::to_string(s.tokens) + " tokens, fewer than head_dim " +
                       std::to_string(s.head_dim) +
                       ": directions that never occurred are in arbitrary order; collect "
                       "a few thousand tokens");
  }
}

// Predictions of all layers, heads in parallel.
void predict(const Statistics& s, const FitOptions& o, const std::vector<LayerRows>& rows, const RowCode& code,
             FitResult& result) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const float one = side == Side::kKey ? result.global_key_clip : result.global_value_clip;
    const SideCosts costs = side_costs(s, side, o.metric);
    std::vector<std::vector<PredictionSums>> sums(s.layers.size(),
                                                  std::vector<PredictionSums>(static_cast<std::size_t>(s.kv_heads)));
    for_each_head(s.layers.size(), s.kv_heads, o.on_step, [&](std::size_t layer, std::int64_t head) {
      const LayerTransform& transform = result.layers[layer].transform;
      const SideTransform& own = side == Side::kKey ? transform.key : transform.value;
      HeadProblem problem = make_problem(s, layer, head, rows[layer].held_out, code, o.encoder);
      problem.metric = costs.metric[layer][head];
      sums[layer][static_cast<std::size_t>(head)] =
          predict_head(problem, side, own, head, own.code(s.head_dim, o.group), own.blocks() ? 0.0f : one);
    });
    for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
      PredictionSums total;
      for (const PredictionSums& head : sums[layer]) total += head;
      SidePrediction& out = side == Side::kKey ? result.layers[layer].key : result.layers[layer].value;
      out = {
          total.identity.relative(), total.hadamard.relative(), total.unclipped.relative(), total.fit.relative(), 0, 0};
      if (!costs.far) continue;
      out.error = costs.cost(layer, total.fit, result.held_out_rows);
      out.one_clip_error = costs.cost(layer, total.one_clip, result.held_out_rows);
    }
  }
}

}  // namespace

MomentChoice moment_choice(const FitOptions& o, ValueTarget value_target, bool centred, bool rotated) {
  MomentChoice choice{value_target, o.metric, centred, rotated, {}};
  if (o.context > 0) choice.served = served_positions(o.context, o.sink, o.recent);
  return choice;
}

std::int64_t default_context(const Statistics& s) {
  constexpr std::int64_t kMost = 131072;
  return has_pre_rope(s) ? std::min(s.max_position, kMost) : 0;
}

std::int64_t fit_steps(const Statistics& s, const FitOptions& o) {
  const std::int64_t heads = static_cast<std::int64_t>(s.layers.size()) * s.kv_heads;
  const std::int64_t held_out = split_rows(s, 0, o.sink, o.max_rows).held_out.tokens();
  return (o.clip == ClipMode::kSearch && held_out >= kFewestRows ? 2 * heads : 0) + (held_out > 0 ? 2 * heads : 0);
}

FitResult fit(const Statistics& s, const FitOptions& o) {
  const TransformKind& kind = find_transform(o.method);
  check_moments(s);
  check_options(s, o);
  const RowCode code = uniform_code(static_cast<int>(s.head_dim), static_cast<int>(o.group));
  FitResult result;
  if (!kind.data_free) note_rank(s, result.warnings);
  FittedSide key, value;
  MetricModel metric;
  result.fisher = o.metric != MetricSource::kMoments && has_fisher(s);
  if (kind.metric_aware) {
    metric = fit_metric(s, o, result.warnings);
    note_rotating_mean(s, o, result.warnings);
    key.transforms = transforms_of(metric.key), value.transforms = transforms_of(metric.value);
    if (o.context == 0 && !has_pre_rope(s)) {
      result.warnings.push_back(
          "the statistics are of format 1, without moments before RoPE: keys are fitted to the positions of the "
          "calibration prompts, and get worse in longer contexts; collect again with this version");
    }
    if (!result.fisher && o.metric == MetricSource::kAuto) {
      result.warnings.push_back(
          "the statistics hold no far-pair Fisher metrics: Q^T Q and W_O^T W_O take their place, and layers are "
          "weighed "
          "by them; collect again with sequences longer than both windows");
    }
  } else {
    key = fit_side(s, o, Side::kKey, result.warnings);
    value = fit_side(s, o, Side::kValue, result.warnings);
    if (o.center != Center::kNone) centre(s, Side::kKey, o.center == Center::kRope, key.transforms);
    if (o.center == Center::kMean || o.center == Center::kRope) centre(s, Side::kValue, false, value.transforms);
  }

  if (o.encoder == Encoder::kFeedback) {
    for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
      set_feedback_metric(s, o, Side::kKey, layer, key.transforms[layer]);
      set_feedback_metric(s, o, Side::kValue, layer, value.transforms[layer]);
    }
  }

  std::vector<LayerRows> rows;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    rows.push_back(split_rows(s, layer, o.sink, o.max_rows));
  }
  result.fit_rows = rows.front().fit.tokens();
  result.held_out_rows = rows.front().held_out.tokens();
  if (o.clip == ClipMode::kFixed) {
    set_clip(key.transforms, result.global_key_clip = o.key_clip);
    set_clip(value.transforms, result.global_value_clip = o.value_clip);
  } else if (o.clip == ClipMode::kSearch && result.held_out_rows >= kFewestRows) {
    if (!result.fisher && !kind.metric_aware && o.metric == MetricSource::kAuto) {
      result.warnings.push_back(
          "the statistics hold no far-pair Fisher metrics: Q^T Q and W_O^T W_O weigh errors in the clip search, and "
          "all "
          "layers count alike for the one clip; collect again with sequences longer than both windows");
    }
    for (FittedSide* side : {&key, &value}) {
      const bool is_key = side == &key;
      const ClipSearch search{is_key ? Side::kKey : Side::kValue, o.scope, o.metric, code, o.encoder};
      const ClipChoice choice = search_clip(s, side->transforms, rows, search, o.on_step);
      for (std::size_t layer = 0; layer < s.layers.size(); ++layer) side->transforms[layer].clip = choice.layers[layer];
      if (o.one_clip) set_clip(side->transforms, choice.one);
      (is_key ? result.global_key_clip : result.global_value_clip) = choice.one;
    }
  } else if (o.clip == ClipMode::kSearch) {
    result.warnings.push_back("the statistics hold " + std::to_string(result.fit_rows + result.held_out_rows) +
                              " sampled rows beyond the sink window, too few for a clip search (at least " +
                              std::to_string(2 * kFewestRows) + "): no clip is set; pass --clip K,V to set one");
  }

  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    LayerFit& out = result.layers.emplace_back();
    out.transform = {static_cast<std::int64_t>(layer), s.head_dim, s.kv_heads, key.transforms[layer],
                     value.transforms[layer]};
    if (kind.metric_aware) continue;
    out.key_energy = captured_energy(key.heads[layer], key.vectors[layer]);
    out.value_energy = captured_energy(value.heads[layer], value.vectors[layer]);
  }
  if (kind.metric_aware) describe(metric, s.head_dim, result);
  if (result.held_out_rows > 0) predict(s, o, rows, code, result);
  return result;
}

}  // namespace oscar
