#include "pipeline/collect/collect_probe.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/progress.h"
#include "collect/accumulator.h"
#include "collect/collect_phases.h"
#include "collect/pre_rope_moments.h"
#include "collect/unrotation.h"
#include "model/device.h"
#include "model/rope.h"

namespace oscar {
namespace {

constexpr const char* kNotKnown = "not known: the shards are not here, so that no layer can be timed";

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
    before_.begin_layer();
    far_.begin_layer(o_weight);
  }

  double moments = 1e9, far = 1e9;  // seconds: the least of all calls

 protected:
  void observe(const AttentionInput& input, const at::Tensor& output) override {
    const Unrotation::Rows& rows = unrotation_.rows_of(*input.batch);
    moments = std::min(moments, seconds_of([&] {
                         moments_.add(input.q, at::cat({input.k, input.v}, 1), output);
                         before_.add(input, rows);
                         wait_for(output);
                       }));
    far = std::min(far, seconds_of([&] {
                     far_.add(input, output, rows);
                     wait_for(output);
                   }));
  }

 private:
  MomentAccumulator moments_;
  PreRopeAccumulator before_;
  FarPairAccumulator far_;
  Unrotation unrotation_;
};

}  // namespace

CollectProbe::CollectProbe(const Checkpoint& checkpoint, const CollectOptions& options)
    : options_(options),
      layers_(checkpoint, {options.dtype, options.device},
              LayerTimer::usual_tokens(checkpoint.config(), options.device)) {
  std::vector<LayerTimer::Rates> rates =
      layers_.rates([this](std::int64_t layer, std::int64_t tokens) { return observe(layer, tokens); });
  forward_ = std::move(rates[0]), moments_ = std::move(rates[1]), far_ = std::move(rates[2]);
}

// Seconds of the forward pass, of the moments, and of the metrics of pairs outside the windows.
std::vector<double> CollectProbe::observe(std::int64_t layer, std::int64_t tokens) {
  Decoder& decoder = layers_.decoder();
  const SequenceBatch batch{{0}, {tokens}, {0}};
  FullAttention attention;
  const at::Tensor hidden = decoder.embed(layers_.ids(tokens));
  if (!decoder.config().holds_kv(layer)) {
    return {warm_seconds([&] { wait_for(decoder.run_layer(layer, hidden, batch, attention)); }), 0.0, 0.0};
  }
  TimedSums sums(attention, decoder.config(), options_.far, decoder.attention_out_weight(layer), options_.device);
  const double all = warm_seconds([&] { wait_for(decoder.run_layer(layer, hidden, batch, sums)); });
  return {std::max(0.0, all - sums.moments - sums.far), sums.moments, sums.far};
}

double CollectProbe::of(const LayerTimer::Rates& rates, const std::vector<std::int64_t>& lengths) const {
  return std::accumulate(lengths.begin(), lengths.end(), 0.0,
                         [&](double total, std::int64_t tokens) { return total + layers_.all_layers(rates, tokens); });
}

double CollectProbe::forward(const std::vector<std::int64_t>& lengths) const { return of(forward_, lengths); }

std::vector<PhaseSeconds> CollectProbe::phases(const TokenPlan& plan) {
  const FarPairs& far = options_.far;
  std::vector<std::int64_t> lengths;
  double pairs = 0.0;
  for (const Piece& piece : plan.pieces) {
    lengths.push_back(piece.length);
    if (piece.length > far.sink + far.recent) {
      pairs += of(far_, {piece.length}) / static_cast<double>(far.query_step(piece.length, options_.device));
    }
  }
  const double computing = forward(lengths);
  std::vector<PhaseSeconds> phases = {{phase::kWeights, lengths.empty() ? 0.0 : layers_.loading(computing)},
                                      {phase::kForward, computing},
                                      {phase::kMoments, of(moments_, lengths)}};
  if (far.enabled) phases.push_back({phase::kFarPairs, pairs});
  return phases;
}

double RunTime::seconds() const {
  return std::accumulate(phases.begin(), phases.end(), 0.0,
                         [](double total, const PhaseSeconds& phase) { return total + phase.seconds; });
}

std::string RunTime::text() const {
  if (probe_tokens == 0) return "time       " + std::string(kNotKnown) + "\n";
  std::string text = "time       about " + duration_text(seconds()) + " on this machine, by a probe of " +
                     std::to_string(probe_tokens) + " tokens through a layer\n";
  for (const PhaseSeconds& phase : phases) {
    text += "  " + phase.name + std::string(phase.name.size() < 16 ? 16 - phase.name.size() : 1, ' ') +
            duration_text(phase.seconds) + "\n";
  }
  for (const PhaseSeconds& way : other_ways) {
    text += "with       " + way.name + ": about " + duration_text(way.seconds) + "\n";
  }
  return text;
}

void RunTime::add_to(Json& out) const {
  const bool known = probe_tokens > 0;
  out["seconds"] = known ? Json(seconds()) : Json(nullptr);
  out["seconds_from"] = known ? "a probe of " + std::to_string(probe_tokens) + " tokens through a layer of each kind"
                              : std::string(kNotKnown);
  if (!known) return;
  out["phases"] = Json::array();
  for (const PhaseSeconds& phase : phases) out["phases"].push_back({{"phase", phase.name}, {"seconds", phase.seconds}});
  for (const PhaseSeconds& way : other_ways) {
    out["other_ways"].push_back({{"options", way.name}, {"seconds", way.seconds}});
  }
}

}  // namespace oscar
