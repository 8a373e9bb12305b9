// The measurement at the end of oscar-fit --model: the bundle on held-out prompts, against the BF16 cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/fit/fit_target.h"
#include "verify/plain_scores.h"

namespace oscar {

struct HeldOutText {
  std::vector<std::vector<std::int32_t>> sequences;  // of equal length
  std::int64_t served = 0;                           // tokens of the contexts that the bundle is for
  std::int64_t tokens = 0;                           // held out, of which the sequences are a part
  bool own = false;                                  // text that the model wrote itself

  std::int64_t context() const { return std::ssize(sequences.front()); }
};

// What a bundle was measured to lose.
struct Measured {
  std::int64_t context = 0, sequences = 0;
  QualityMetrics quality;
};

class HeldOutRun {
 public:
  HeldOutRun(const Checkpoint& checkpoint, DecoderOptions decoding, HeldOutText text, const CacheWindows& windows);

  Measured measure(const Bundle& bundle);
  const HeldOutText& text() const { return text_; }
  // The content of probe.json (kProbeName), from the last measurement: the first tokens of the first sequence, and
  // log-probabilities of the last of these. Null if all their queries are inside the BF16 windows.
  Json probe() const;

 private:
  const ModelConfig& model_;
  HeldOutText text_;
  CacheWindows windows_;
  PlainScores scores_;
};

// Where the chosen budget has more KL than the target: moves to the next budget whose predicted KL, times the error of
// the prediction so far, is within it. Error with exit code 1 if no budget is left; `kept` as in choose_budget().
void climb(TargetChoice& choice, const TargetArguments& target, const Measured& measured, const std::string& kept);

void record_measured(Bundle& bundle, const HeldOutText& text, const Measured& measured);  // provenance.measured
Json measured_json(const HeldOutText& text, const Measured& measured);
// The last lines of a run. target: null, or the one that was met.
std::string measured_text(const HeldOutText& text, const Measured& measured, const TargetArguments* target);

}  // namespace oscar
