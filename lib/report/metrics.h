// Quality metrics of a method against the BF16 baseline, from per-token scores. All logarithms are natural.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "report/sample_statistics.h"

namespace oscar {

// Scores of one sequence. Entry t belongs to the logits at position first_position + t, which predict the next token.
struct SequenceScores {
  std::int64_t first_position = 0;
  std::vector<double> baseline_nll;    // -ln p of the next token with the BF16 cache, in nats
  std::vector<double> nll;             // the same with the method's cache
  std::vector<double> kl;              // KL(baseline || method) over the full vocabulary, in nats
  std::vector<std::uint8_t> same_top;  // 1: both have the same most probable token
};

struct KlMetrics {
  double mean = 0, standard_error = 0;
  double min = 0, p001 = 0, p01 = 0, p05 = 0, p10 = 0;  // 0.1, 1, 5 and 10 % quantiles
  double median = 0, p90 = 0, p95 = 0, p99 = 0, p999 = 0, max = 0;
  std::optional<Interval> interval, p999_interval;  // bootstrap over sequences: of the mean and of p999
  std::vector<double> by_sequence;                  // mean of each sequence, in order; pairs two runs on the same text
};

// Change in the probability of the next token, method minus baseline, in percent (llama.cpp's Delta p).
struct DeltaPMetrics {
  double mean = 0, standard_error = 0;
  double rms = 0, rms_error = 0;
  double min = 0, p001 = 0, p01 = 0, p05 = 0, p10 = 0, p25 = 0;
  double median = 0, p75 = 0, p90 = 0, p95 = 0, p99 = 0, p999 = 0, max = 0;
};

struct QualityMetrics {
  std::int64_t tokens = 0;
  double nll = 0, nll_error = 0;  // mean, standard error
  double ppl = 0, ppl_error = 0;  // exp(nll); its error by the delta method
  double ln_ppl_ratio = 0;        // mean of nll - baseline nll over the same tokens
  double ln_ppl_ratio_error = 0;  // from paired differences, so the variation of the text cancels
  double ppl_ratio = 1;           // exp(ln_ppl_ratio)
  double ppl_ratio_error = 0;     // ppl_ratio * ln_ppl_ratio_error
  std::optional<Interval> ppl_ratio_interval;
  double ln_ppl_correlation = 1;  // between nll and baseline nll over tokens: Cor(ln PPL(Q), ln PPL(base))
  double ppl_difference = 0, ppl_difference_error = 0;
  KlMetrics kl;
  DeltaPMetrics delta_p;
  double same_top1 = 1, same_top1_error = 0;   // fraction of tokens
  std::optional<Interval> same_top1_interval;  // bootstrap over sequences
};

// The scores of the first `sequences` sequences at positions from `first_position` on. Those positions must have
// scores.
std::vector<SequenceScores> scores_from(std::vector<SequenceScores> scores, std::int64_t first_position,
                                        std::int64_t sequences);

// InputError if there are no tokens.
QualityMetrics summarize(const std::vector<SequenceScores>& sequences, const BootstrapOptions& options);

// Mean KL over positions [from, to) of all sequences.
struct PositionBucket {
  std::int64_t from = 0, to = 0, tokens = 0;
  double kl = 0;
};
// Splits [first, context) into `count` buckets of equal width; the last may be shorter. Empty buckets are left out.
std::vector<PositionBucket> kl_by_position(const std::vector<SequenceScores>& sequences, std::int64_t first,
                                           std::int64_t context, std::int64_t count);

// Growth with length: mean KL in the last quarter of scored positions divided by mean KL in the second quarter. The
// first quarter is excluded because the share of quantized keys still rises from zero there.
struct KlGrowth {
  double early = 0, late = 0;                      // mean KL [nats] in the second and in the last quarter
  std::int64_t early_tokens = 0, late_tokens = 0;  // tokens in each mean
  // late / early, with early at least kLeastKl, so that noise of a nearly perfect method does not count as growth.
  double ratio() const;
  static constexpr double kLeastKl = 1e-5;  // [nats]
};
// A bucket belongs to the quarter that contains its middle. Empty if one of the two quarters has no tokens.
std::optional<KlGrowth> kl_growth(const std::vector<PositionBucket>& by_position);

// Reading far back: does a model repeat what its text said before the BF16 window? A reading task without prompts of
// its own, from the scores of the text.

inline constexpr std::int64_t kPhraseTokens = 5;  // of a repeated phrase; its last token is the one that is asked for

// Positions of the tokens that end a repeated phrase, ascending. The phrase was there before: `sink` tokens or more
// after the start, and its last token more than `recent` tokens earlier, so only quantized rows hold it. The latest
// earlier occurrence of the first kPhraseTokens - 1 tokens counts.
std::vector<std::int64_t> repeated_tokens(std::span<const std::int32_t> ids, std::int64_t sink, std::int64_t recent);

// A token counts as recalled if the model gives it a probability above one half.
struct RecallMetrics {
  std::int64_t tokens = 0;               // repeated tokens with scores
  double baseline = 0, share = 0;        // recalled with the BF16 cache, and with the method's, as fractions
  double baseline_error = 0, error = 0;  // standard errors
};

// positions: [S] of repeated_tokens(). Empty if no repeated token has a score.
std::optional<RecallMetrics> recall(const std::vector<SequenceScores>& scores,
                                    const std::vector<std::vector<std::int64_t>>& positions);

}  // namespace oscar
