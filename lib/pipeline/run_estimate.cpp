#include "pipeline/run_estimate.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <numeric>

#include "attention/cached_attention.h"
#include "attention/prefill_core.h"
#include "collect/accumulator.h"
#include "collect/collect_phases.h"
#include "collect/pre_rope_moments.h"
#include "collect/reading_range.h"
#include "collect/unrotation.h"
#include "curves/choose_profiles.h"
#include "curves/curve_passes.h"
#include "curves/measure_curves.h"
#include "curves/sampled_logits.h"
#include "fit/fit_phases.h"
#include "generate/write_text.h"
#include "model/rope.h"
#include "text/sequences.h"

namespace oscar {
namespace {

// Measured on the sample models, in exact passes of a layer: what the coded layer of a side takes for each profile, and
// a layer of a whole; and what of the most passes a run makes.
constexpr double kCodedLayer = 1.5, kWholeLayer = 2.0, kPassesMade = 0.9;
constexpr double kEigenproblems = 12.0;  // of one head and side, in products of d x d matrices in FP64 times d / 8

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <typename Work>
double seconds_of(const Work& work) {
  const double start = now();
  work();
  return now() - start;
}

// The faster of two calls after one that warms up: other work on the machine only adds time.
template <typename Work>
double warm_seconds(const Work& work) {
  work();
  return std::min(seconds_of(work), seconds_of(work));
}

void settle(const at::Tensor& x) { x.flatten().narrow(0, 0, 1).item(); }  // waits for a GPU

// a T + b P.
struct Rate {
  double token = 0.0, pair = 0.0;

  double of(std::int64_t tokens, std::int64_t span) const {
    return token * static_cast<double>(tokens) + pair * attention_pairs(tokens, span);
  }

  // Through both samples; what noise makes negative is zero.
  static Rate through(std::int64_t few, double short_seconds, std::int64_t many, double long_seconds,
                      std::int64_t span) {
    const double t1 = static_cast<double>(few), t2 = static_cast<double>(many);
    const double p1 = attention_pairs(few, span), p2 = attention_pairs(many, span);
    Rate rate;
    if (many > few && p2 * t1 > p1 * t2) {
      rate.pair = std::max(0.0, (long_seconds * t1 - short_seconds * t2) / (p2 * t1 - p1 * t2));
    }
    rate.pair = std::min(rate.pair, long_seconds / p2);
    rate.token = (long_seconds - rate.pair * p2) / t2;
    return rate;
  }
};

struct Observed {
  double forward = 0.0, moments = 0.0, far = 0.0;
};

// The sums of the collector, each timed.
class TimedSums : public AttentionObserver {
 public:
  TimedSums(Attention& inner, const ModelConfig& c, const FarPairs& pairs, const at::Tensor& o_weight,
            at::Device device)
      : AttentionObserver(inner),
        moments_(c.kv_heads, c.head_dim, device),
        before_(c.kv_heads, c.head_dim, device),
        far_(c.query_heads, c.kv_heads, c.head_dim, pairs, device),
        unrotation_(common_rope(c), device) {
    before_.begin_layer(nullptr);
    far_.begin_layer(o_weight, nullptr);
  }

  Observed seconds{0.0, 1e9, 1e9};  // the least of all calls

 protected:
  void observe(const AttentionInput& input, const at::Tensor& output) override {
    const Unrotation::Rows& rows = unrotation_.rows_of(*input.batch);
    const double moments = seconds_of([&] {
      moments_.add(input.q, at::cat({input.k, input.v}, 1), output);
      before_.add(input, rows);
      settle(output);
    });
    const double far = seconds_of([&] {
      far_.add(input, output, rows);
      settle(output);
    });
    seconds = {0.0, std::min(seconds.moments, moments), std::min(seconds.far, far)};
  }

 private:
  MomentAccumulator moments_;
  PreRopeAccumulator before_;
  FarPairAccumulator far_;
  Unrotation unrotation_;
};

// Of one kind of layer.
struct LayerRates {
  Rate forward, moments, far, exact;
};

class Probe {
 public:
  Probe(const Checkpoint& checkpoint, at::ScalarType dtype, at::Device device, const RunShape& shape)
      : shape_(shape), decoder_(checkpoint, {dtype, device, true}), config_(decoder_.config()) {
    // Layers of one kind are alike but for their weights.
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      const Kind kind{config_.span(layer), config_.holds_kv(layer), config_.is_linear(layer)};
      if (!rates_.contains(kind)) rates_[kind] = measure(layer);
      kinds_.push_back(kind);
    }
    // The last layer is not the one in memory, unless it is the only one.
    FullAttention attention;
    const auto token = [&](std::int64_t layer) {
      settle(decoder_.run_layer(layer, decoder_.embed(ids(1)), {{0}, {1}, {0}}, attention));
    };
    token(0);
    const double last = seconds_of([&] { token(config_.layers - 1); });
    layer_load_ = std::max(0.0, last - seconds_of([&] { token(config_.layers - 1); }));
  }

  // What reading the weights of all layers adds to `compute` seconds of them: on a GPU a layer is copied during the one
  // before it.
  double load(double compute) const {
    const double all = layer_load_ * static_cast<double>(config_.layers);
    return decoder_.options().device.is_cpu() ? all : std::max(0.0, all - compute);
  }
  double all_layers(Rate LayerRates::*rate, std::int64_t tokens) const {
    return sum([&](const LayerRates& rates, std::int64_t span) { return (rates.*rate).of(tokens, span); });
  }
  double all_layers(Rate LayerRates::*rate, const std::vector<std::int64_t>& lengths) const {
    return std::accumulate(lengths.begin(), lengths.end(), 0.0,
                           [&](double total, std::int64_t tokens) { return total + all_layers(rate, tokens); });
  }

  // The logits of a KL, in seconds of a scored row: once for all calls, for each call, for each version of a call, and
  // for a whole.
  struct Scoring {
    double once = 0.0, call = 0.0, version = 0.0, whole = 0.0;
  };
  Scoring scoring() const {
    constexpr std::int64_t kMostLogits = std::int64_t{1} << 25;
    const std::int64_t rows = std::clamp<std::int64_t>(kMostLogits / config_.vocabulary, 16,
                                                       probe_tokens(config_, decoder_.options().device) / 4);
    const double count = static_cast<double>(rows);
    const at::Tensor hidden = decoder_.final_norm(decoder_.embed(ids(rows)).narrow(1, 0, config_.hidden));
    const DivergenceBaseline baseline{hidden, {}};
    const std::vector<at::Tensor> one{hidden * 1.001}, three{hidden * 1.001, hidden * 1.002, hidden * 1.003};
    Scoring out;
    out.whole = warm_seconds([&] { mean_divergences(decoder_, baseline, one, "a probe"); }) / count;
    std::function<void(const std::vector<at::Tensor>&)> score = [&](const auto& versions) {
      mean_divergences(decoder_, baseline, versions, "a probe");
    };
    if (config_.vocabulary >= kLeastSampledVocabulary) {
      const SampledLogits sampled = sample_logits(decoder_, hidden);
      out.once = seconds_of([&] { settle(sample_logits(decoder_, hidden).weights); }) / count;
      score = [&, sampled](const auto& versions) {
        sampled_divergences(decoder_, hidden, sampled, versions, "a probe");
      };
    }
    const double first = warm_seconds([&] { score(one); }) / count, more = warm_seconds([&] { score(three); }) / count;
    out.version = std::max(0.0, (more - first) / 2.0);
    out.call = std::max(0.0, first - out.version);
    return out;
  }

  // One token of each of `rows` rows, with its logits.
  double step(std::int64_t rows) {
    SequenceBatch batch;
    for (std::int64_t row = 0; row < rows; ++row) {
      batch.ids.push_back(row), batch.lengths.push_back(1), batch.starts.push_back(0);
    }
    FullAttention attention;
    const at::Tensor hidden = decoder_.embed(ids(rows));
    std::map<Kind, double> seconds;
    double total = 0.0;
    for (std::size_t layer = 0; layer < kinds_.size(); ++layer) {
      if (!seconds.contains(kinds_[layer])) {
        seconds[kinds_[layer]] = warm_seconds(
            [&] { settle(decoder_.run_layer(static_cast<std::int64_t>(layer), hidden, batch, attention)); });
      }
      total += seconds[kinds_[layer]];
    }
    const at::Tensor last = decoder_.final_norm(hidden.narrow(1, 0, config_.hidden));
    return total + warm_seconds([&] { settle(at::softmax(decoder_.logits(last), -1, at::kDouble).cumsum(-1)); });
  }

  // Eigenproblems and products of the transforms of all layers.
  double transforms() const {
    const at::Tensor square = at::rand({config_.head_dim, config_.head_dim}, at::kDouble);
    const double product = warm_seconds([&] { at::mm(square, square); });
    const double heads = static_cast<double>(2 * config_.kv_heads * config_.kv_layers());
    return heads * kEigenproblems * product * static_cast<double>(config_.head_dim) / 8.0;
  }

 private:
  struct Kind {
    std::int64_t span;
    bool caches, linear;
    auto operator<=>(const Kind&) const = default;
  };

  std::vector<std::int32_t> ids(std::int64_t count) const {
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<std::int32_t>(i * 7919 % config_.vocabulary));
    return out;
  }

  template <typename Of>
  double sum(const Of& of) const {
    double total = 0.0;
    for (const Kind& kind : kinds_) total += of(rates_.at(kind), kind.span);
    return total;
  }

  Observed observe(std::int64_t layer, std::int64_t tokens) {
    const SequenceBatch batch{{0}, {tokens}, {0}};
    FullAttention attention;
    const at::Tensor hidden = decoder_.embed(ids(tokens));
    if (!config_.holds_kv(layer)) {
      return {warm_seconds([&] { settle(decoder_.run_layer(layer, hidden, batch, attention)); }), 0.0, 0.0};
    }
    TimedSums sums(attention, config_, shape_.far, decoder_.attention_out_weight(layer), decoder_.options().device);
    const double all = warm_seconds([&] { settle(decoder_.run_layer(layer, hidden, batch, sums)); });
    return {std::max(0.0, all - sums.seconds.moments - sums.seconds.far), sums.seconds.moments, sums.seconds.far};
  }

  double exact(std::int64_t layer, std::int64_t tokens) {
    const SequenceBatch batch{{0}, {tokens}, {0}};
    ExactCacheAttention attention;
    const at::Tensor hidden = decoder_.embed(ids(tokens));
    return warm_seconds([&] { settle(decoder_.run_layer(layer, hidden, batch, attention)); });
  }

  LayerRates measure(std::int64_t layer) {
    LayerRates rates;
    const std::int64_t span = config_.span(layer);
    const std::int64_t longer = probe_tokens(config_, decoder_.options().device), shorter = longer / 4;
    const Observed few = observe(layer, shorter), many = observe(layer, longer);
    const auto rate = [&](double a, double b) { return Rate::through(shorter, a, longer, b, span); };
    rates.forward = rate(few.forward, many.forward);
    rates.moments = rate(few.moments, many.moments);
    rates.far = rate(few.far, many.far);
    if (shape_.curve_sequences > 0) rates.exact = rate(exact(layer, shorter), exact(layer, longer));
    return rates;
  }

  const RunShape& shape_;
  Decoder decoder_;
  const ModelConfig& config_;
  std::map<Kind, LayerRates> rates_;
  std::vector<Kind> kinds_;  // [layers]
  double layer_load_ = 0.0;  // seconds of reading one layer
};

double text_seconds(Probe& probe, const RunShape& shape) {
  const std::int64_t batches = (shape.text_rows + shape.text_batch - 1) / shape.text_batch;
  const std::int64_t rows = std::min(shape.text_rows, shape.text_batch);
  double seconds = probe.step(rows) * static_cast<double>(batches * shape.text_row_tokens);
  for (std::int64_t before = kBlockTokens; before < shape.text_row_tokens; before += kBlockTokens) {
    seconds += static_cast<double>(shape.text_rows) * probe.all_layers(&LayerRates::forward, before);
  }
  return seconds;
}

double range_seconds(const Probe& probe, std::int64_t tokens) {
  const std::vector<std::int64_t> beside(8, kShortContext + 128);  // the runs that reading_range.cpp scores
  const double compute =
      probe.all_layers(&LayerRates::forward, tokens) + probe.all_layers(&LayerRates::forward, beside);
  return compute + probe.load(compute);
}

double curve_seconds(const Probe& probe, const ModelConfig& config, const RunShape& shape) {
  const double layers = static_cast<double>(config.layers), sequences = static_cast<double>(shape.curve_sequences);
  const double profiles =
      kPassesMade * static_cast<double>(ChoiceOptions{}.most) * 2.0 * static_cast<double>(config.kv_layers());
  const Probe::Scoring scoring = probe.scoring();
  const double rows =
      static_cast<double>(std::max<std::int64_t>(0, shape.curve_context - first_scored_position(shape.windows))) /
      static_cast<double>(kCurveStride);
  const double layer = probe.all_layers(&LayerRates::exact, shape.curve_context) / layers;
  // Of each profile: the coded layer, and on average half of the layers after it.
  const double each = layer * (kCodedLayer + 0.5 * (layers - 1.0)) + rows * scoring.version;
  const double calls = 0.5 * profiles;  // that make the baseline's softmax, of about two profiles each
  const double sides = layer * layers + profiles * each + calls * rows * scoring.call + rows * scoring.once;
  const double whole = kWholeLayer * probe.all_layers(&LayerRates::exact, shape.curve_context) + rows * scoring.whole;
  return probe.load(0.0) + sequences * (sides + 2.0 * static_cast<double>(shape.curve_budgets) * whole);
}

}  // namespace

std::int64_t probe_tokens(const ModelConfig& c, at::Device device) {
  if (!device.is_cpu()) return 4096;
  constexpr std::int64_t kMostProducts = std::int64_t{1} << 35;  // of a probe; about a second of two cores
  const std::int64_t weights = c.hidden * (2 * (c.query_heads + c.kv_heads) * c.head_dim + 3 * c.intermediate);
  return std::clamp<std::int64_t>(kMostProducts / std::max<std::int64_t>(weights, 1), 128, 1024);
}

double attention_pairs(std::int64_t tokens, std::int64_t span) {
  const double t = static_cast<double>(tokens), w = static_cast<double>(span);
  if (span == 0 || tokens <= span) return 0.5 * t * (t + 1.0);
  return 0.5 * w * (w + 1.0) + (t - w) * w;
}

std::vector<PhaseSeconds> estimate_run(const Checkpoint& checkpoint, at::ScalarType dtype, at::Device device,
                                       const RunShape& shape) {
  const c10::InferenceMode no_gradients;
  Probe probe(checkpoint, dtype, device, shape);
  std::vector<PhaseSeconds> phases;
  if (shape.text_rows > 0) phases.push_back({phase::kOwnText, text_seconds(probe, shape)});
  if (shape.range_tokens > 0) phases.push_back({phase::kRange, range_seconds(probe, shape.range_tokens)});
  const double forward = probe.all_layers(&LayerRates::forward, shape.lengths);
  phases.push_back({phase::kWeights, probe.load(forward)});
  phases.push_back({phase::kForward, forward});
  phases.push_back({phase::kMoments, probe.all_layers(&LayerRates::moments, shape.lengths)});
  if (shape.far.enabled) {
    std::vector<std::int64_t> longer;
    for (const std::int64_t tokens : shape.lengths) {
      if (tokens > shape.far.sink + shape.far.recent) longer.push_back(tokens);
    }
    phases.push_back({phase::kFarPairs, probe.all_layers(&LayerRates::far, longer)});
  }
  if (shape.curve_sequences > 0) phases.push_back({phase::kCurves, curve_seconds(probe, checkpoint.config(), shape)});
  phases.push_back({phase::kTransforms, probe.transforms()});
  return phases;
}

double whole_seconds(const std::vector<PhaseSeconds>& phases) {
  return std::accumulate(phases.begin(), phases.end(), 0.0,
                         [](double total, const PhaseSeconds& phase) { return total + phase.seconds; });
}

}  // namespace oscar
