// The sequence length up to which a model reads as well as it reads short sequences. config.json gives the length a
// model was made for, but training may have used less. Beyond the trained length, keys leave their usual range.
// Statistics of such positions would take bits from the positions that are served (docs/results.md).
//
// The model itself shows the range. The last quarter of a sequence is predicted twice: with all tokens before it, and
// with only the last kShortContext tokens. A model within its range predicts no worse with more context. If it predicts
// worse by more than kMostLoss nats per token, the length is beyond its range. Then the first half of the sequence is
// tried, and so on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/decoder.h"

namespace oscar {

inline constexpr std::int64_t kLeastRange = 2048;    // tokens; shorter sequences are not tried
inline constexpr std::int64_t kShortContext = 1024;  // tokens
inline constexpr double kMostLoss = 0.1;             // nats per token

// Result of the last try: a length, and the mean loss in nats over the tokens of its last quarter.
struct ReadingRange {
  std::int64_t tokens = 0;                       // the longest tried length that the model reads well
  std::int64_t beyond = 0;                       // the shortest tried length that it does not read well; 0: none
  double beyond_loss = 0.0, beyond_short = 0.0;  // losses at that length: with all tokens, with kShortContext
};

// ids: one sequence. Runs one forward pass over it with streamed layers, and short passes beside it. decoding: device
// and types; products in bfloat16 are exact enough for kMostLoss. step: called with the number of finished layers, of
// config().layers in each pass; may throw. Sequences of fewer than 2 kLeastRange tokens are not tried. NumericalError
// if a loss is not finite.
ReadingRange reading_range(const Checkpoint& checkpoint, const DecoderOptions& decoding,
                           const std::vector<std::int32_t>& ids,
                           const std::function<void(std::int64_t)>& step = nullptr);

// Lengths that are tried for a sequence of this many tokens, the longest first; empty: none.
std::vector<std::int64_t> tried_lengths(std::int64_t tokens);

}  // namespace oscar
