#include "tune/tune.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
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
    check_window_choices();
    // The last one is left out where the closed form is kept.
    total_ = 1 + 4 + 2 + (allocates() ? 2 * layers() + 1 + 5 + o_.window_choices.size() : 0) + (clips() ? 2 : 0);
  }

  TuneResult run() {
    TuneResult result;
    if (allocates()) measure_sensitivities(result);
    const Candidate closed{base_, o_.windows};
    best_ = closed;
    closed_score_ = best_score_ = trial(closed, 1, "closed form");
    if (allocates()) try_allocations(result);
    for (const double damping : {1e-2, 5e-2}) {
      consider("damping", [&](Candidate& c) { c.options.damping = damping; });
    }
    for (const double exponent : {0.9, 0.7}) {
      consider("exponent", [&](Candidate& c) { c.options.exponent = exponent; });
    }
    if (clips()) {
      for (const auto& [key, value] : {std::pair{0.98f, 0.98f}, {0.96f, 0.92f}}) {
        consider("clip", [&](Candidate& c) {
          c.options.clip = ClipMode::kFixed, c.options.key_clip = key, c.options.value_clip = value;
        });
      }
    }
    for (const Windows& windows : o_.window_choices) {
      consider("windows " + std::to_string(windows.sink) + "," + std::to_string(windows.recent), [&](Candidate& c) {
        c.options.bits = bits_for_windows(base_.bits, o_.windows, windows, o_.context);
        c.windows = windows;
      });
    }
    result.closed_form = trial(closed, 2, "closed form, third split");
    result.chosen = trial(best_, 2, "chosen, third split");
    result.options = best_.options;
    result.windows = best_.windows;
    result.closed_form_kept = candidate_json(best_) == candidate_json(closed);
    result.trials = log_.trials();
    return result;
  }

 private:
  struct Candidate {
    FitOptions options;
    Windows windows;
  };

  std::size_t layers() const { return s_.layers.size(); }
  bool allocates() const { return base_.method == "waterfill"; }
  bool clips() const { return !allocates() && base_.key_widths.empty() && base_.clip == ClipMode::kNone; }

  void check_window_choices() const {
    if (!o_.window_choices.empty() && !allocates()) {
      throw UsageError(
          "other windows are tried at equal bytes, which needs --method waterfill: its bits can be chosen");
    }
    for (const Windows& w : o_.window_choices) {
      const double bits = bits_for_windows(base_.bits, o_.windows, w, o_.context);
      const double most = 4.0 + 32.0 / static_cast<double>(s_.head_dim);
      if (w.sink + w.recent < o_.context && bits >= 1.25 && bits <= most) continue;
      char text[160];
      std::snprintf(text, sizeof text,
                    "windows %lld,%lld would leave %.3g bits for the codes (1.25 to %.4g can be had)",
                    static_cast<long long>(w.sink), static_cast<long long>(w.recent), bits, most);
      throw UsageError(text);
    }
  }

  // Runs `change` of the best candidate so far, and takes it where it wins.
  template <typename Change>
  void consider(const std::string& name, const Change& change) {
    Candidate candidate = best_;
    change(candidate);
    const Score score = trial(candidate, 1, name);
    const bool finds = score.solved >= o_.floor * std::min(1.0, closed_score_.solved);
    const PairedDifference gain = paired_difference(best_score_, score);
    if (finds && gain.mean > o_.margin * gain.error && gain.mean > 0.0) best_ = candidate, best_score_ = score;
  }

  void try_allocations(const TuneResult& measured) {
    for (const double power : {0.5, 1.0}) {  // between the closed form and the measurement
      consider("measured sensitivities^" + std::string(power == 1.0 ? "1" : "0.5"), [&](Candidate& c) {
        c.options = base_;
        c.options.key_weights = powers(measured.key_sensitivity, power);
        c.options.value_weights = powers(measured.value_sensitivity, power);
      });
    }
    const FitOptions from = best_.options;
    for (const double factor : {2.0, 0.5, 4.0}) {  // keys against values
      consider("keys x " + std::string(factor == 2.0 ? "2" : (factor == 4.0 ? "4" : "0.5")), [&](Candidate& c) {
        c.options.key_weights = scaled(from.key_weights, factor);
        if (c.options.value_weights.empty()) c.options.value_weights.assign(s_.layers.size(), 1.0);
      });
    }
  }

  Json identity() const {
    Json parts = s_.metadata.is_object() && s_.metadata.contains("parts") ? s_.metadata["parts"] : Json();
    return {{"method", base_.method},    {"model", s_.model_fingerprint}, {"statistics", parts},
            {"tokens", s_.tokens},       {"text", o_.text_sha256},        {"context", o_.context},
            {"sequences", o_.sequences}, {"prompts", o_.prompts},         {"seed", o_.seed},
            {"bits", base_.bits},        {"sink", o_.windows.sink},       {"recent", o_.windows.recent}};
  }

  // What a trial is known by in the log.
  Json candidate_json(const Candidate& candidate) const {
    const FitOptions& o = candidate.options;
    Json json = {{"bits", o.bits},
                 {"damping", o.damping},
                 {"exponent", o.exponent},
                 {"key_weights", o.key_weights},
                 {"value_weights", o.value_weights},
                 {"center", static_cast<int>(o.center)},
                 {"scope", static_cast<int>(o.scope)},
                 {"metric", static_cast<int>(o.metric)},
                 {"encoder", to_string(o.encoder)}};
    if (o.clip == ClipMode::kFixed) json["clip"] = {o.key_clip, o.value_clip};
    const Windows& w = candidate.windows;
    if (w.sink != o_.windows.sink || w.recent != o_.windows.recent) json["windows"] = {w.sink, w.recent};
    return json;
  }

  SplitEvaluator& evaluator(std::size_t split) {
    if (!evaluators_[split]) evaluators_[split] = std::make_unique<SplitEvaluator>(decoder_, splits_[split], windows_);
    return *evaluators_[split];
  }

  Score run_trial(const Json& key, std::size_t split, const Bundle& bundle, const std::string& name) {
    const WindowPolicy windows{bundle.windows.sink, bundle.windows.recent, 1};
    if (interrupt_requested()) {
      throw InterruptedError("interrupted; the trials so far are in " + o_.log.string() +
                             ", the same command goes on from them");
    }
    Score score;
    if (const std::optional<Score> known = log_.find(key)) {
      score = *known;
    } else {
      const KvMethod method = make_method(bundle.method, config_, &bundle, windows);
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

  Score trial(const Candidate& c, std::size_t split, const std::string& name) {
    const Json key = {{"options", candidate_json(c)}, {"split", split}};
    return run_trial(key, split, bundle_from_fit(s_, c.options, fit_trial(c.options), c.windows, {}), name);
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
  Candidate best_;
  Score best_score_, closed_score_;
  std::int64_t done_ = 0;
  std::size_t total_ = 0;
};

}  // namespace

double bits_for_windows(double bits, const Windows& from, const Windows& to, std::int64_t context) {
  const double before = static_cast<double>(from.sink + from.recent), after = static_cast<double>(to.sink + to.recent);
  const double tokens = static_cast<double>(context);
  return after >= tokens ? 0.0 : (16.0 * (before - after) + bits * (tokens - before)) / (tokens - after);
}

TuneResult tune(const Statistics& statistics, const FitOptions& base, const Checkpoint& checkpoint, Decoder& decoder,
                const Tokenizer& tokenizer, const TuneOptions& options) {
  if (base.method != "waterfill" && base.method != "balanced") {
    throw UsageError("--tune is for --method waterfill or balanced; " + base.method + " has nothing to tune");
  }
  return Tuner(statistics, base, checkpoint, decoder, tokenizer, options).run();
}

}  // namespace oscar
