#include "bench/split_evaluator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <span>

#include "attention/cached_attention.h"
#include "text/sequences.h"
#include "verify/divergence.h"
#include "verify/forward.h"

namespace oscar {
namespace {

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_error(const std::vector<double>& values, double mean) {
  if (values.size() < 2) return 0.0;
  double squares = 0.0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  const double n = static_cast<double>(values.size());
  return std::sqrt(squares / (n - 1.0) / n);
}

// KL and agreement over rows [from, last) of a sequence; logits are made block by block.
void compare(Decoder& decoder, const std::vector<std::int32_t>& ids, std::int64_t from, const at::Tensor& baseline,
             const at::Tensor& hidden, SequenceScores& scores) {
  const std::int64_t rows = baseline.size(0), step = rows_per_block(decoder.config().vocabulary, baseline.device());
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const std::span<const std::int32_t> targets(ids.data() + from + first + 1, static_cast<std::size_t>(count));
    const BaselineRows base(decoder.logits(baseline.narrow(0, first, count)), targets, "the text");
    base.score(decoder.logits(hidden.narrow(0, first, count)), "the method", scores);
  }
}

// Is the most probable token the right one at each token of the answer? hidden [answer, hidden].
bool answered(Decoder& decoder, const ScoreSplit::Retrieval& prompt, const at::Tensor& hidden) {
  const at::Tensor best = decoder.logits(hidden).argmax(-1).to(at::kCPU);
  for (std::int64_t i = 0; i < best.size(0); ++i) {
    if (best[i].item<std::int64_t>() != prompt.ids[static_cast<std::size_t>(prompt.answer_start + i)]) return false;
  }
  return true;
}

at::Tensor answer_rows(const ScoreSplit::Retrieval& prompt, const at::Tensor& hidden) {
  const auto length = static_cast<std::int64_t>(prompt.ids.size());
  return hidden.narrow(0, prompt.answer_start - 1, length - prompt.answer_start).clone();
}

// The rows of a text that see a quantised key and have a token to predict.
at::Tensor text_rows(const at::Tensor& hidden, std::int64_t first) {
  return hidden.narrow(0, first, hidden.size(0) - 1 - first).clone();
}

}  // namespace

SplitEvaluator::SplitEvaluator(Decoder& decoder, const ScoreSplit& split, const CacheWindows& windows)
    : decoder_(decoder), split_(split), first_position_(first_scored_position(windows)) {
  KvMethod exact = make_method("bf16", decoder.config(), nullptr, windows);
  for (const auto& sequence : split.sequences) {
    SimulatedPrefillAttention attention(exact);
    text_.push_back(text_rows(prefill_hidden(decoder, sequence, {&attention})[0], first_position_));
  }
  for (std::size_t p = 0; p < split.prompts.size(); ++p) {
    SimulatedPrefillAttention attention(exact);
    const at::Tensor rows =
        answer_rows(split.prompts[p], prefill_hidden(decoder, split.prompts[p].ids, {&attention})[0]);
    if (!answered(decoder, split.prompts[p], rows)) continue;
    kept_.push_back(p);
    answers_.push_back(rows);
  }
}

Score SplitEvaluator::evaluate(const KvMethod& method) {
  SequenceScores text;
  Score score;
  for (std::size_t s = 0; s < split_.sequences.size(); ++s) {
    SimulatedPrefillAttention attention(method);
    const at::Tensor hidden = prefill_hidden(decoder_, split_.sequences[s], {&attention})[0];
    compare(decoder_, split_.sequences[s], first_position_, text_[s], text_rows(hidden, first_position_), text);
  }
  double solved = 0.0;
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const ScoreSplit::Retrieval& prompt = split_.prompts[kept_[i]];
    SimulatedPrefillAttention attention(method);
    const at::Tensor rows = answer_rows(prompt, prefill_hidden(decoder_, prompt.ids, {&attention})[0]);
    solved += answered(decoder_, prompt, rows) ? 1.0 : 0.0;
  }
  score.text_kl = mean(text.kl);
  score.text_error = standard_error(text.kl, score.text_kl);
  for (const std::uint8_t same : text.same_top) score.same_top -= (1.0 - same) / static_cast<double>(text.kl.size());
  score.solved = kept_.empty() ? 1.0 : solved / static_cast<double>(kept_.size());
  return score;
}

}  // namespace oscar
