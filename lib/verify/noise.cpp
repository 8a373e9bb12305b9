#include "verify/noise.h"

#include <deque>

#include "attention/cached_attention.h"
#include "verify/forward.h"
#include "verify/sequence_scorer.h"

namespace oscar {

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
