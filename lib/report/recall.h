// Reading far back: does a model repeat what its text said before the BF16 window? A reading task without prompts of
// its own, from the scores of the text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "report/metrics.h"

namespace oscar {

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
