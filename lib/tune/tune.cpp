#include "tune/tune.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/errors.h"
#include "base/interrupt.h"
#include "bundle/from_fit.h"
#include "rotation/waterfill.h"
#include "verify/sequences.h"
#include "verify/tasks/task.h"

namespace oscar {
namespace {

constexpr std::uint64_t kSplitSeed = 1000;  // retrieval prompts of the splits are drawn apart

std::vector<TuneSplit> make_splits(const Tokenizer& tokenizer, const ModelConfig& config, const TuneOptions& o,
                                   const WindowPolicy& windows) {
  SequenceOptions cut;
  cut.context = o.context;
  cut.max_position = config.max_position;
  cut.prefix = leading_special_tokens(tokenizer);
  cut.text_name = o.text_name;
  cut.max_sequences = 3 * o.sequences;
  const SequenceSet set = cut_sequences(o.text, cut, windows);
  const auto each = std::min<std::int64_t>(o.sequences, static_cast<std::int64_t>(set.sequences.size()) / 3);
  if (each < 1 || set.context < o.context) {
    throw InputError(o.text_name + ": is too short to tune on: " + std::to_string(set.text_tokens) +
                     " tokens, at least " + std::to_string(3 * o.context) + " are needed for three splits of context " +
                     std::to_string(o.context));
  }
  std::vector<TuneSplit> splits(3);
  for (std::size_t s = 0; s < 3; ++s) {
    for (std::int64_t i = 0; i < each; ++i) {
      splits[s].sequences.push_back(set.sequences[s * static_cast<std::size_t>(each) + static_cast<std::size_t>(i)]);
    }
    if (o.prompts < 1) continue;
    const TaskSet task = make_task("niah", o.context, o.prompts, o.seed + kSplitSeed * (s + 1), tokenizer);
    for (const TaskPrompt& prompt : task.prompts) {
      const AnswerSpan answer = prompt.answers.front();
      splits[s].prompts.push_back({{prompt.ids.begin(), prompt.ids.begin() + answer.end}, answer.begin});
    }
  }
  return splits;
}

class Tuner {
 public:
  Tuner(const Statistics& statistics, const FitOptions& base, const Checkpoint& checkpoint, Decoder& decoder,
        const Tokenizer& tokenizer, const TuneOptions& options)
      : s_(statistics),
        base_(base),
        config_(checkpoint.config()),
        decoder_(decoder),
        o_(options),
        windows_{options.windows.sink, options.windows.recent, 1},
        splits_(make_splits(tokenizer, config_, options, windows_)),
        evaluators_(3),
        log_(options.log, identity()) {
    base_.on_step = nullptr;
    total_ = 2 * layers() + 1 + 12;  // one less where the closed form is kept
  }

  TuneResult run() {
    TuneResult result;
    measure_sensitivities(result);
    const Score closed = trial(base_, 1, "closed form");
    FitOptions best = base_;
    Score best_score = closed;
    const auto consider = [&](const FitOptions& candidate, const std::string& name) {
      const Score score = trial(candidate, 1, name);
      const bool finds = score.solved >= o_.floor * std::min(1.0, closed.solved);
      const PairedDifference gain = paired_difference(best_score, score);
      if (finds && gain.mean > o_.margin * gain.error && gain.mean > 0.0) best = candidate, best_score = score;
    };
    for (const double power : {0.5, 1.0}) {  // between the closed form and the measurement
      FitOptions candidate = base_;
      candidate.key_weights = powers(result.key_sensitivity, power);
      candidate.value_weights = powers(result.value_sensitivity, power);
      consider(candidate, "measured sensitivities^" + std::string(power == 1.0 ? "1" : "0.5"));
    }
    for (const double factor : {2.0, 0.5, 4.0}) {  // keys against values
      FitOptions candidate = best;
      candidate.key_weights = scaled(best.key_weights, factor);
      if (candidate.value_weights.empty()) candidate.value_weights.assign(s_.layers.size(), 1.0);
      consider(candidate, "keys x " + std::string(factor == 2.0 ? "2" : (factor == 4.0 ? "4" : "0.5")));
    }
    for (const double damping : {1e-2, 5e-2}) {
      FitOptions candidate = best;
      candidate.damping = damping;
      consider(candidate, "damping");
    }
    for (const double exponent : {0.9, 0.7}) {
      FitOptions candidate = best;
      candidate.exponent = exponent;
      consider(candidate, "exponent");
    }
    result.closed_form = trial(base_, 2, "closed form, third split");
    result.chosen = trial(best, 2, "chosen, third split");
    result.options = best;
    result.closed_form_kept = options_json(best) == options_json(base_);
    result.trials = log_.trials();
    return result;
  }

 private:
  std::size_t layers() const { return s_.layers.size(); }

  Json identity() const {
    Json parts = s_.metadata.is_object() && s_.metadata.contains("parts") ? s_.metadata["parts"] : Json();
    return {{"model", s_.model_fingerprint},
            {"statistics", parts},
            {"tokens", s_.tokens},
            {"text", o_.text_sha256},
            {"context", o_.context},
            {"sequences", o_.sequences},
            {"prompts", o_.prompts},
            {"seed", o_.seed},
            {"bits", base_.bits},
            {"sink", o_.windows.sink},
            {"recent", o_.windows.recent}};
  }

  static Json options_json(const FitOptions& o) {
    return {{"bits", o.bits},
            {"damping", o.damping},
            {"exponent", o.exponent},
            {"key_weights", o.key_weights},
            {"value_weights", o.value_weights},
            {"center", static_cast<int>(o.center)},
            {"scope", static_cast<int>(o.scope)},
            {"metric", static_cast<int>(o.metric)},
            {"encoder", to_string(o.encoder)}};
  }

  SplitEvaluator& evaluator(std::size_t split) {
    if (!evaluators_[split]) evaluators_[split] = std::make_unique<SplitEvaluator>(decoder_, splits_[split], windows_);
    return *evaluators_[split];
  }

  Score run_trial(const Json& key, std::size_t split, const Bundle& bundle, const std::string& name) {
    if (interrupt_requested()) {
      throw InterruptedError("interrupted; the trials so far are in " + o_.log.string() +
                             ", the same command goes on from them");
    }
    Score score;
    if (const std::optional<Score> known = log_.find(key)) {
      score = *known;
    } else {
      const KvMethod method = make_method(bundle.method, config_, &bundle, windows_);
      score = evaluator(split).evaluate(method);
      log_.add(key, name, score);
    }
    if (o_.on_trial) o_.on_trial(name, ++done_, static_cast<std::int64_t>(total_));
    return score;
  }

  FitResult fit_trial(FitOptions options) const {
    options.max_rows = 0;  // no predictions: the trial measures
    return fit(s_, options);
  }

  Bundle bundle_of(const FitOptions& options) const {
    return bundle_from_fit(s_, options, fit_trial(options), o_.windows, {});
  }

  Score trial(const FitOptions& options, std::size_t split, const std::string& name) {
    const Json key = {{"options", options_json(options)}, {"split", split}};
    return run_trial(key, split, bundle_of(options), name);
  }

  // Four bits everywhere, but one layer's keys or values at 4-2-1-1: the KL above that of four bits everywhere, over
  // the predicted error of 4-2-1-1.
  void measure_sensitivities(TuneResult& result) {
    FitOptions wide = base_;
    wide.bits = 4.0 + 32.0 / static_cast<double>(s_.head_dim);
    const FitResult fitted = fit_trial(wide);
    const Bundle all = bundle_from_fit(s_, wide, fitted, o_.windows, {});
    const double floor = run_trial({{"probe", "4-4-4-4"}, {"split", 0}}, 0, all, "four bits").objective();
    std::vector<double> measured;
    for (const bool key : {true, false}) {
      for (std::size_t layer = 0; layer < layers(); ++layer) {
        Bundle probe = all;
        LayerTransform& t = probe.layers[layer];
        (key ? t.key : t.value).widths = {4, 2, 1, 1};
        const std::string name = std::string(key ? "keys" : "values") + " of layer " + std::to_string(layer);
        const double kl = run_trial({{"probe", name}, {"split", 0}}, 0, probe, name).objective();
        const LayerFit& f = fitted.layers[layer];
        const double predicted = probe_error(key ? f.key_spectrum : f.value_spectrum);
        measured.push_back(predicted > 0.0 ? std::max(kl - floor, 0.05 * floor + 1e-9) / predicted : 0.0);
      }
    }
    // Where theory predicts no error at all, the median takes its place; only ratios matter.
    std::vector<double> sorted;
    for (const double m : measured) {
      if (m > 0.0) sorted.push_back(m);
    }
    std::sort(sorted.begin(), sorted.end());
    const double middle = sorted.empty() ? 1.0 : sorted[sorted.size() / 2];
    for (double& m : measured) m = m > 0.0 ? m / middle : 1.0;
    result.key_sensitivity.assign(measured.begin(), measured.begin() + static_cast<std::int64_t>(layers()));
    result.value_sensitivity.assign(measured.begin() + static_cast<std::int64_t>(layers()), measured.end());
  }

  // Proportional to the predicted error of widths 4-2-1-1; the error of 4-4-4-4 is known from the fit.
  static double probe_error(const SideSpectrum& s) {
    double wide = 0.0, probe = 0.0;
    constexpr std::uint8_t kProbe[] = {4, 2, 1, 1};
    for (std::size_t b = 0; b < s.lambda.size(); ++b) {
      const double energy = s.lambda[b] * s.lambda[b];
      wide += energy * block_distortion(4);
      probe += energy * block_distortion(kProbe[b]);
    }
    return wide > 0.0 ? s.error * probe / wide : 0.0;
  }

  static std::vector<double> powers(std::vector<double> values, double power) {
    for (double& v : values) v = std::pow(v, power);
    return values;
  }
  std::vector<double> scaled(std::vector<double> values, double factor) const {
    if (values.empty()) values.assign(s_.layers.size(), 1.0);
    for (double& v : values) v *= factor;
    return values;
  }

  const Statistics& s_;
  FitOptions base_;
  const ModelConfig& config_;
  Decoder& decoder_;
  const TuneOptions& o_;
  WindowPolicy windows_;
  std::vector<TuneSplit> splits_;
  std::vector<std::unique_ptr<SplitEvaluator>> evaluators_;
  TrialLog log_;
  std::int64_t done_ = 0;
  std::size_t total_ = 0;
};

}  // namespace

TuneResult tune(const Statistics& statistics, const FitOptions& base, const Checkpoint& checkpoint, Decoder& decoder,
                const Tokenizer& tokenizer, const TuneOptions& options) {
  if (base.method != "waterfill")
    throw UsageError("--tune is for --method waterfill; " + base.method + " has nothing to tune");
  return Tuner(statistics, base, checkpoint, decoder, tokenizer, options).run();
}

}  // namespace oscar
