#include "pipeline/fit/fit_time.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/cached_attention.h"
#include "base/clock.h"
#include "base/progress.h"
#include "collect/collect_phases.h"
#include "collect/reading_range.h"
#include "curves/curve_passes.h"
#include "fit/fit_phases.h"
#include "model/device.h"
#include "text/sequences.h"

namespace oscar {
namespace {

constexpr const char* kNotKnown = "not known: the shards are not here, so that no layer can be timed";

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

// Measured on the sample models, in products of a layer: what the moments take of each head and token, in d x d, and
// what the metrics of pairs outside the windows take of each pair.
constexpr double kMoments = 7.0, kFarPairs = 1.7;

// Query-key pairs of a sequence: all before a query and itself, or those within `span` tokens (0: no window).
double attention_pairs(std::int64_t tokens, std::int64_t span) {
  const double t = static_cast<double>(tokens), w = static_cast<double>(span);
  if (span == 0 || tokens <= span) return 0.5 * t * (t + 1.0);
  return 0.5 * w * (w + 1.0) + (t - w) * w;
}

// Products of keys and values with queries, and of all that is in a layer, for one sequence.
double attention_products(const ModelConfig& c, std::int64_t layer, std::int64_t tokens) {
  if (!c.holds_kv(layer)) return 0.0;
  return static_cast<double>(2 * c.query_heads * c.head_dim) * attention_pairs(tokens, c.span(layer));
}

double products(const ModelConfig& c, std::int64_t layer, std::int64_t tokens) {
  return layer_products(c) * static_cast<double>(tokens) + attention_products(c, layer, tokens);
}

// A length at which a GPU is busy, and which takes a CPU about a second.
std::int64_t usual_tokens(const ModelConfig& model, at::Device device) {
  if (!device.is_cpu()) return 4096;
  constexpr double kMostProducts = static_cast<double>(std::int64_t{1} << 35);
  return static_cast<std::int64_t>(std::clamp(kMostProducts / std::max(layer_products(model), 1.0), 128.0, 1024.0));
}

DecoderOptions streamed(DecoderOptions options) {
  options.stream_layers = true;
  options.prefetch = false;
  return options;
}

// Times the last layer with a KV cache, which it loads, and the head.
class Probe {
 public:
  Probe(const Checkpoint& checkpoint, const DecoderOptions& decoding)
      : decoder_(checkpoint, streamed(decoding)), tokens_(usual_tokens(config(), decoding.device)) {
    for (std::int64_t i = 0; i < config().layers; ++i) layer_ = config().holds_kv(i) ? i : layer_;
    run(layer_ == 0 ? config().layers - 1 : 0, {{0}, {1}, {0}});  // so that the layer is not in memory
    const double first = seconds_of([&] { run(layer_, {{0}, {1}, {0}}); });
    load_ = std::max(0.0, first - seconds_of([&] { run(layer_, {{0}, {1}, {0}}); }));
    const double counted = products(config(), layer_, tokens_);
    product_ = warm_seconds([&] { run(layer_, {{0}, {tokens_}, {0}}); }) / counted;
    cached_product_ = warm_seconds([&] { run<ExactCacheAttention>(layer_, {{0}, {tokens_}, {0}}); }) / counted;
    measure_head();
  }

  std::int64_t tokens() const { return tokens_; }
  const ModelConfig& config() const { return decoder_.config(); }
  // The forward pass of all layers for one sequence, also with an exact cache, and the sums of collecting.
  double forward(std::int64_t tokens) const { return product_ * of_layers(products, tokens); }
  double exact(std::int64_t tokens) const { return cached_product_ * of_layers(products, tokens); }
  double far_pairs(std::int64_t tokens) const { return kFarPairs * product_ * of_layers(attention_products, tokens); }
  double moments(std::int64_t tokens) const {
    const std::int64_t d = config().head_dim, heads = (config().query_heads + config().kv_heads) * config().kv_layers();
    return kMoments * product_ * static_cast<double>(heads * d * d * tokens);
  }
  // Reading the weights of all layers, beside `computing` seconds of them: a GPU copies a layer during the one before.
  double loading(double computing) const {
    const double all = load_ * static_cast<double>(config().layers);
    return decoder_.options().device.is_cpu() ? all : std::max(0.0, all - computing);
  }
  // One token of each of `rows` rows.
  double step(std::int64_t rows) {
    SequenceBatch batch;
    for (std::int64_t row = 0; row < rows; ++row) {
      batch.ids.push_back(row), batch.lengths.push_back(1), batch.starts.push_back(0);
    }
    return warm_seconds([&] { run(layer_, batch); }) * static_cast<double>(config().layers) +
           logits_ * static_cast<double>(rows);
  }
  // The KL of a row, from all logits, and as a pass of a profile measures it.
  double whole_row() const { return 2.0 * logits_; }
  double curve_row() const { return curve_row_; }

 private:
  at::Tensor embedded(std::int64_t count) const {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(i * 7919 % config().vocabulary));
    return decoder_.embed(ids);
  }

  template <typename Kind = FullAttention>
  void run(std::int64_t layer, const SequenceBatch& batch) {
    Kind attention;
    wait_for(decoder_.run_layer(layer, embedded(batch.tokens()), batch, attention));
  }

  void measure_head() {
    constexpr std::int64_t kRows = 64;
    const at::Tensor hidden = decoder_.final_norm(embedded(kRows).narrow(1, 0, config().hidden));
    const auto row = [](const auto& work) { return warm_seconds(work) / static_cast<double>(kRows); };
    logits_ = row([&] { wait_for(at::softmax(decoder_.logits(hidden), -1)); });
    curve_row_ = logits_;  // and that of the baseline once
    if (config().vocabulary < kLeastSampledVocabulary) return;
    const SampledLogits sampled = sample_logits(decoder_, hidden);
    curve_row_ = row([&] { sampled_divergences(decoder_, hidden, sampled, {hidden * 1.001}, "a probe"); });
  }

  double of_layers(double (*counted)(const ModelConfig&, std::int64_t, std::int64_t), std::int64_t tokens) const {
    double total = 0.0;
    for (std::int64_t layer = 0; layer < config().layers; ++layer) total += counted(config(), layer, tokens);
    return total;
  }

  Decoder decoder_;
  std::int64_t layer_ = 0, tokens_;
  // Seconds of a layer, a product, a row.
  double load_ = 0.0, product_ = 0.0, cached_product_ = 0.0, logits_ = 0.0, curve_row_ = 0.0;
};

double text_seconds(Probe& probe, const TextShape& text) {
  const std::int64_t batches = (text.rows + text.batch_rows - 1) / text.batch_rows;
  double seconds = probe.step(std::min(text.rows, text.batch_rows)) * static_cast<double>(batches * text.row_tokens);
  for (std::int64_t before = kBlockTokens; before < text.row_tokens; before += kBlockTokens) {
    seconds += static_cast<double>(text.rows) * probe.forward(before);
  }
  return seconds;
}

// The runs that reading_range.cpp scores.
double range_seconds(const Probe& probe, std::int64_t tokens) {
  const double computing = probe.forward(tokens) + 8.0 * probe.forward(kShortContext + 128);
  return computing + probe.loading(computing);
}

double curve_seconds(const Probe& probe, const CurvePlan& plan, const CurveShape& shape) {
  const double layers = static_cast<double>(probe.config().layers);
  const double kv_layers = static_cast<double>(probe.config().kv_layers()), sides = 2.0 * kv_layers;
  const double all = probe.exact(shape.context), layer = all / layers;
  const double coded = sides * std::min(usual_profiles(sides), static_cast<double>(shape.profiles));
  double profiles = shape.one() ? sides : coded;                                      // that pass the later layers
  if (plan.decoding.rounds()) profiles += shape.one() ? kv_layers / 4.0 : kv_layers;  // the rounding of each layer
  const double scored =
      static_cast<double>(std::max<std::int64_t>(0, shape.context - first_scored_position(plan.windows)));
  const double rows = scored / static_cast<double>(kCurveStride), part = scored / static_cast<double>(shape.context);
  // Of each profile: the coded layer, and on average half of the layers after it, for the scored part.
  const double each = layer * part * 0.5 * (layers - 1.0) + rows * probe.curve_row();
  const double whole = kWholeLayer * all + rows * probe.whole_row();
  const double sequence =
      all + coded * layer * kCodedLayer + profiles * each + 2.0 * static_cast<double>(plan.budgets) * whole;
  return probe.loading(0.0) + static_cast<double>(shape.sequences) * sequence;
}

double held_out_seconds(const Probe& probe, const FitShape& shape) {
  const HeldOutShape& held = *shape.held_out;
  const double all = probe.exact(held.context), coded = static_cast<double>(shape.measurements);
  const auto rows = static_cast<double>(held.context - first_scored_position(shape.windows));
  const double seconds =
      static_cast<double>(held.sequences) * (all + coded * (kWholeLayer * all + rows * probe.whole_row()));
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
  Probe probe(checkpoint, {options.dtype, options.device});
  // Passes whose products are narrower than those of collecting.
  std::optional<Probe> narrow;
  const auto probe_of = [&](const DecoderOptions& decoding) -> Probe& {
    if (!decoding.narrow_products()) return probe;
    if (!narrow) narrow.emplace(checkpoint, decoding);
    return *narrow;
  };
  RunTime time{probe.tokens(), {}};
  if (shape.text) time.phases.push_back({phase::kOwnText, text_seconds(probe, *shape.text)});
  if (shape.range_tokens > 0) {
    time.phases.push_back({phase::kRange, range_seconds(probe_of(shape.range), shape.range_tokens)});
  }
  const FarPairs& far = options.far;
  double forward = 0.0, moments = 0.0, pairs = 0.0;
  for (const Piece& piece : plan.pieces) {
    forward += probe.forward(piece.length), moments += probe.moments(piece.length);
    if (piece.length <= far.sink + far.recent) continue;
    pairs += probe.far_pairs(piece.length) / static_cast<double>(far.query_step(piece.length, options.device));
  }
  time.phases.push_back({phase::kWeights, plan.pieces.empty() ? 0.0 : probe.loading(forward)});
  time.phases.push_back({phase::kForward, forward});
  time.phases.push_back({phase::kMoments, moments});
  if (far.enabled) time.phases.push_back({phase::kFarPairs, pairs});
  const std::optional<CurvePlan>& curves = shape.curves;
  const auto measuring = [&](const CurveShape& each) {
    return curve_seconds(probe_of(curves->decoding), *curves, each);
  };
  const double measured = curves ? measuring(curves->shape) : 0.0;
  if (curves) time.phases.push_back({phase::kCurves, measured});
  time.phases.push_back({phase::kTransforms, transform_seconds(checkpoint.config())});
  if (shape.held_out) time.phases.push_back({phase::kHeldOut, held_out_seconds(probe, shape)});
  if (!curves) return time;
  const double others = time.seconds() - measured;
  for (const CurveShape& other : {kQuickCurves, kFullCurves}) {
    const bool quicker = other.options() == kFullCurves.options() || !curves->shape.one();
    if (quicker && other.options() != curves->shape.options())
      time.other_ways.push_back({other.options(), others + measuring(other)});
  }
  if (!curves->needed) time.other_ways.push_back({"--allocate analytic", others});
  return time;
}

double RunTime::seconds() const {
  return std::accumulate(phases.begin(), phases.end(), 0.0,
                         [](double total, const Part& phase) { return total + phase.seconds; });
}

std::string RunTime::text() const {
  if (probe_tokens == 0) return "time       " + std::string(kNotKnown) + "\n";
  std::string text = "time       about " + duration_text(seconds()) + " on this machine, by a probe of " +
                     std::to_string(probe_tokens) + " tokens through a layer\n";
  for (const Part& phase : phases) {
    text += "  " + phase.name + std::string(phase.name.size() < 16 ? 16 - phase.name.size() : 1, ' ') +
            duration_text(phase.seconds) + "\n";
  }
  for (const Part& way : other_ways) text += "with       " + way.name + ": about " + duration_text(way.seconds) + "\n";
  return text;
}

void RunTime::add_to(Json& out) const {
  const bool known = probe_tokens > 0;
  out["seconds"] = known ? Json(seconds()) : Json(nullptr);
  out["seconds_from"] =
      known ? "a probe of " + std::to_string(probe_tokens) + " tokens through a layer" : std::string(kNotKnown);
  if (!known) return;
  out["phases"] = Json::array();
  for (const Part& phase : phases) out["phases"].push_back({{"phase", phase.name}, {"seconds", phase.seconds}});
  for (const Part& way : other_ways) out["other_ways"].push_back({{"options", way.name}, {"seconds", way.seconds}});
}

}  // namespace oscar
