#include "verify/plain_scores.h"

#include <deque>
#include <memory>

#include "attention/cached_attention.h"
#include "base/progress.h"
#include "registry/registry.h"
#include "verify/forward.h"
#include "verify/sequence_scorer.h"

namespace oscar {
namespace {

DecoderOptions streamed(DecoderOptions options) {
  options.stream_layers = options.prefetch = true;
  return options;
}

}  // namespace

PlainScores::PlainScores(const Checkpoint& checkpoint, DecoderOptions decoding, SequenceSet set,
                         const CacheWindows& windows)
    : decoder_(checkpoint, streamed(decoding)),
      set_(std::move(set)),
      first_position_(first_scored_position(windows)),
      baseline_(make_method(method_with(MethodRole::kBaseline).id, checkpoint.config(), nullptr, windows)) {
  decoder_.load_head();
}

QualityMetrics PlainScores::measure(const KvMethod& method, const BootstrapOptions& bootstrap) {
  std::vector<std::unique_ptr<SimulatedPrefillAttention>> attention;
  std::vector<PrefillRun> runs;
  const auto add = [&](const KvMethod& of) {
    for (const std::vector<std::int32_t>& ids : set_.sequences) {
      attention.push_back(std::make_unique<SimulatedPrefillAttention>(of));
      runs.push_back({&ids, attention.back().get(), ""});
    }
  };
  add(method);
  if (exact_.empty()) add(baseline_);
  const auto layers = static_cast<std::uint64_t>(decoder_.config().layers);
  Progress progress("measured", layers, "layers");
  std::vector<at::Tensor> states = prefill_hidden(decoder_, runs, nullptr, [&](std::int64_t) { progress.advance(1); });
  progress.finish();
  const auto count = set_.sequences.size();
  if (exact_.empty()) {
    exact_.assign(states.begin() + static_cast<std::ptrdiff_t>(count), states.end());
    states.resize(count);
  }
  std::vector<std::vector<SequenceScores>> scores(1);
  const SequenceScorer scorer(decoder_, set_, first_position_, nullptr);
  for (std::size_t s = 0; s < count; ++s) scorer.score(s, exact_[s], {states[s]}, {{&method, "prefill"}}, scores);
  first_scores_ = scores.front().front();
  return summarize(scores.front(), bootstrap);
}

NoiseFacts measure_noise(Decoder& decoder, const Checkpoint& checkpoint, const KvMethod& baseline,
                         const std::vector<const KvMethod*>& methods, const SequenceSet& set,
                         std::int64_t first_position, bool bfloat16) {
  const std::vector<std::int32_t>& ids = set.sequences.front();
  std::vector<KvMethod> plain;
  for (const KvMethod* method : methods) {
    plain.push_back(*method);
    plain.back().windows.sink = std::ssize(ids);
    plain.back().value_windows.reset();
  }
  std::deque<SimulatedPrefillAttention> attention{SimulatedPrefillAttention(baseline)};
  std::vector<Attention*> passes{&attention.front()};
  std::vector<ScoredMethod> scored;
  for (const KvMethod& method : plain) {
    passes.push_back(&attention.emplace_back(method));
    scored.push_back({&method, "prefill"});
  }
  std::vector<at::Tensor> hidden = prefill_hidden(decoder, ids, passes);
  const at::Tensor exact = hidden.front();
  hidden.erase(hidden.begin());
  if (bfloat16) {
    DecoderOptions options{at::kBFloat16, decoder.options().device};
    options.stream_layers = true;
    Decoder rounded(checkpoint, options);
    SimulatedPrefillAttention same(baseline);
    hidden.push_back(prefill_hidden(rounded, ids, {&same}).front().to(exact.scalar_type()));
    scored.push_back({&baseline, "prefill"});
  }
  std::vector<std::vector<SequenceScores>> scores(scored.size());
  NoiseFacts noise;
  noise.tokens = SequenceScorer(decoder, set, first_position, nullptr).score(0, exact, hidden, scored, scores);
  for (std::size_t i = 0; i < scored.size(); ++i) {
    const double kl = summarize(scores[i], {0, 0.95, 0}).kl.mean;
    if (i < plain.size()) {
      noise.without_codes.emplace_back(plain[i].id, kl);
    } else {
      noise.arithmetic = kl;
    }
  }
  return noise;
}

}  // namespace oscar
