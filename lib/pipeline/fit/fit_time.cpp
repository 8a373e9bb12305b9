#include "pipeline/fit/fit_time.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "attention/cached_attention.h"
#include "base/clock.h"
#include "collect/collect_phases.h"
#include "collect/reading_range.h"
#include "curves/choose_profiles.h"
#include "curves/curve_passes.h"
#include "curves/measure_curves.h"
#include "curves/sampled_logits.h"
#include "fit/fit_phases.h"
#include "model/device.h"
#include "text/sequences.h"

namespace oscar {
namespace {

// Measured on the sample models, in exact passes of a layer: what the coded layer of a side takes for each profile, and
// a layer of a whole.
constexpr double kCodedLayer = 1.5, kWholeLayer = 2.0;

// Profiles of a side that a run measures. The more sides, the less one of them changes the whole, so fewer profiles are
// worth a pass: about 7 with 8 sides (sample models), and 5.5 with 36 (Gemma 3 270M).
double usual_profiles(double sides) {
  const double more = 4.0 * std::pow(8.0 / sides, 0.3);
  return std::min(static_cast<double>(kAnchors) + more, static_cast<double>(ChoiceOptions{}.most));
}
constexpr double kEigenproblems = 12.0;  // of one head and side, in products of d x d matrices in FP64 times d / 8

// The logits of a KL, in seconds of a scored row: once for all calls, for each call, for each version of a call, and
// for a whole.
struct Scoring {
  double once = 0.0, call = 0.0, version = 0.0, whole = 0.0;
};

Scoring scoring(LayerTimer& probe) {
  Decoder& decoder = probe.decoder();
  const ModelConfig& config = decoder.config();
  constexpr std::int64_t kMostLogits = std::int64_t{1} << 25;
  const std::int64_t rows = std::clamp<std::int64_t>(kMostLogits / config.vocabulary, 16, probe.tokens() / 4);
  const double count = static_cast<double>(rows);
  const at::Tensor hidden = decoder.final_norm(decoder.embed(probe.ids(rows)).narrow(1, 0, config.hidden));
  const DivergenceBaseline baseline{hidden, {}};
  const std::vector<at::Tensor> one{hidden * 1.001}, three{hidden * 1.001, hidden * 1.002, hidden * 1.003};
  Scoring out;
  out.whole = warm_seconds([&] { mean_divergences(decoder, baseline, one, "a probe"); }) / count;
  std::function<void(const std::vector<at::Tensor>&)> score = [&](const auto& versions) {
    mean_divergences(decoder, baseline, versions, "a probe");
  };
  if (config.vocabulary >= kLeastSampledVocabulary) {
    const SampledLogits sampled = sample_logits(decoder, hidden);
    out.once = seconds_of([&] { wait_for(sample_logits(decoder, hidden).weights); }) / count;
    score = [&, sampled](const auto& versions) { sampled_divergences(decoder, hidden, sampled, versions, "a probe"); };
  }
  const double first = warm_seconds([&] { score(one); }) / count, more = warm_seconds([&] { score(three); }) / count;
  out.version = std::max(0.0, (more - first) / 2.0);
  out.call = std::max(0.0, first - out.version);
  return out;
}

// One token of each of `rows` rows, with its logits.
double step_seconds(LayerTimer& probe, std::int64_t rows) {
  Decoder& decoder = probe.decoder();
  SequenceBatch batch;
  for (std::int64_t row = 0; row < rows; ++row) {
    batch.ids.push_back(row), batch.lengths.push_back(1), batch.starts.push_back(0);
  }
  FullAttention attention;
  const at::Tensor hidden = decoder.embed(probe.ids(rows));
  const double layers = probe.all_layers([&](std::int64_t layer) {
    return warm_seconds([&] { wait_for(decoder.run_layer(layer, hidden, batch, attention)); });
  });
  const at::Tensor last = decoder.final_norm(hidden.narrow(1, 0, decoder.config().hidden));
  return layers + warm_seconds([&] { wait_for(at::softmax(decoder.logits(last), -1, at::kDouble).cumsum(-1)); });
}

double text_seconds(CollectProbe& probe, const TextShape& text) {
  const std::int64_t batches = (text.rows + text.batch_rows - 1) / text.batch_rows;
  const std::int64_t rows = std::min(text.rows, text.batch_rows);
  double seconds = step_seconds(probe.layers(), rows) * static_cast<double>(batches * text.row_tokens);
  for (std::int64_t before = kBlockTokens; before < text.row_tokens; before += kBlockTokens) {
    seconds += static_cast<double>(text.rows) * probe.forward({before});
  }
  return seconds;
}

// Seconds of exact attention over one sequence: rates of the layers of this probe.
LayerTimer::Rates exact_rates(LayerTimer& probe, const std::function<std::unique_ptr<Attention>()>& attention) {
  const auto seconds = [&](std::int64_t layer, std::int64_t tokens) {
    const SequenceBatch batch{{0}, {tokens}, {0}};
    const std::unique_ptr<Attention> used = attention();
    const at::Tensor hidden = probe.decoder().embed(probe.ids(tokens));
    return std::vector{warm_seconds([&] { wait_for(probe.decoder().run_layer(layer, hidden, batch, *used)); })};
  };
  return probe.rates(seconds).front();
}

// narrow: a probe whose products are in a narrower type than those of collecting; null: none.
double range_seconds(CollectProbe& probe, LayerTimer* narrow, std::int64_t tokens) {
  std::vector<std::int64_t> lengths(8, kShortContext + 128);  // the runs that reading_range.cpp scores
  lengths.push_back(tokens);
  double computing = 0.0;
  if (narrow == nullptr) {
    computing = probe.forward(lengths);
  } else {
    const LayerTimer::Rates rates = exact_rates(*narrow, [] { return std::make_unique<FullAttention>(); });
    for (const std::int64_t length : lengths) computing += narrow->all_layers(rates, length);
  }
  return computing + probe.layers().loading(computing);
}

// What curves of other shapes would take is asked of one probe.
struct CurveTimer {
  LayerTimer& probe;
  const CurvePlan& plan;
  LayerTimer::Rates rates = exact_rates(probe, [] { return std::make_unique<ExactCacheAttention>(); });
  Scoring row = scoring(probe);

  double seconds(const CurveShape& shape);
};

double CurveTimer::seconds(const CurveShape& shape) {
  Decoder& decoder = probe.decoder();
  const double all = probe.all_layers(rates, shape.context);
  const double layers = static_cast<double>(decoder.config().layers), layer = all / layers;
  const double sequences = static_cast<double>(shape.sequences);
  const double kv_layers = static_cast<double>(decoder.config().kv_layers());
  const double coded = std::min(usual_profiles(2.0 * kv_layers), static_cast<double>(shape.profiles)) * 2.0 * kv_layers;
  double profiles = shape.one() ? 2.0 * kv_layers : coded;                            // that pass the later layers
  if (plan.decoding.rounds()) profiles += shape.one() ? kv_layers / 4.0 : kv_layers;  // the rounding of each layer
  const double rows =
      static_cast<double>(std::max<std::int64_t>(0, shape.context - first_scored_position(plan.windows))) /
      static_cast<double>(kCurveStride);
  // Of each profile: the coded layer, and on average half of the layers after it, for the scored part.
  const double scored = rows * static_cast<double>(kCurveStride) / static_cast<double>(shape.context);
  const double each = layer * scored * 0.5 * (layers - 1.0) + rows * row.version;
  const double calls =
      (shape.one() ? 1.0 : 0.5) * profiles;  // that make the baseline's softmax, of about two profiles each
  const double sides = all + coded * layer * kCodedLayer + profiles * each + calls * rows * row.call + rows * row.once;
  const double whole = kWholeLayer * all + rows * row.whole;
  return probe.loading(0.0) + sequences * (sides + 2.0 * static_cast<double>(plan.budgets) * whole);
}

double held_out_seconds(LayerTimer& probe, const FitShape& shape) {
  const LayerTimer::Rates rates = exact_rates(probe, [] { return std::make_unique<ExactCacheAttention>(); });
  const HeldOutShape& held = *shape.held_out;
  const double all = probe.all_layers(rates, held.context), coded = static_cast<double>(shape.measurements);
  const auto rows = static_cast<double>(held.context - first_scored_position(shape.windows));
  const double seconds =
      static_cast<double>(held.sequences) * (all + coded * (kWholeLayer * all + rows * scoring(probe).whole));
  return seconds + (1.0 + coded) * probe.loading(seconds);
}

// Eigenproblems and products of the transforms of all layers.
double transform_seconds(const ModelConfig& config) {
  const at::Tensor square = at::rand({config.head_dim, config.head_dim}, at::kDouble);
  const double product = warm_seconds([&] { at::mm(square, square); });
  const double heads = static_cast<double>(2 * config.kv_heads * config.kv_layers());
  return heads * kEigenproblems * product * static_cast<double>(config.head_dim) / 8.0;
}

}  // namespace

RunTime fit_time(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                 const FitShape& shape) {
  if (!checkpoint.has_shards()) return {};
  const c10::InferenceMode no_gradients;
  CollectProbe probe(checkpoint, options);
  RunTime time{probe.layers().tokens(), {}};
  if (shape.text) time.phases.push_back({phase::kOwnText, text_seconds(probe, *shape.text)});
  // Passes whose products are narrower than those of collecting.
  std::optional<LayerTimer> narrow;
  const bool curves = shape.curves && shape.curves->decoding.narrow_products();
  const bool range = shape.range_tokens > 0 && shape.range.narrow_products();
  if (curves || range) {
    narrow.emplace(checkpoint, curves ? shape.curves->decoding : shape.range, probe.layers().tokens());
  }
  if (shape.range_tokens > 0) {
    const double seconds = range_seconds(probe, range ? &*narrow : nullptr, shape.range_tokens);
    time.phases.push_back({phase::kRange, seconds});
  }
  for (PhaseSeconds& phase : probe.phases(plan)) time.phases.push_back(std::move(phase));
  std::vector<PhaseSeconds> others;  // what the curves would take otherwise
  if (shape.curves) {
    CurveTimer timer{curves ? *narrow : probe.layers(), *shape.curves};
    time.phases.push_back({phase::kCurves, timer.seconds(shape.curves->shape)});
    for (const CurveShape& other : {kQuickCurves, kFullCurves}) {
      const bool quicker = other.options() == kFullCurves.options() || !shape.curves->shape.one();
      if (quicker && other.options() != shape.curves->shape.options())
        others.push_back({other.options(), timer.seconds(other)});
    }
    if (!shape.curves->needed) others.push_back({"--allocate analytic", 0.0});
  }
  time.phases.push_back({phase::kTransforms, transform_seconds(checkpoint.config())});
  if (shape.held_out) time.phases.push_back({phase::kHeldOut, held_out_seconds(probe.layers(), shape)});
  const auto measuring = std::find_if(time.phases.begin(), time.phases.end(),
                                      [](const PhaseSeconds& each) { return each.name == phase::kCurves; });
  for (const PhaseSeconds& other : others) {
    time.other_ways.push_back({other.name, time.seconds() - measuring->seconds + other.seconds});
  }
  return time;
}

}  // namespace oscar
