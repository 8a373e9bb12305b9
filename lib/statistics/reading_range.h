// How long a sequence a model reads as well as it reads short ones. config.json says what length a model was made for,
// and models may have been trained on less: behind that length their keys leave what they ever were, and statistics of
// such positions take bits from those that are served (docs/results.md).
//
// The model says so itself. The last quarter of a sequence is predicted twice: with all tokens before it, and with the
// last kShortContext alone. A model within its range predicts no worse from more context; one that does, by more than
// kMostLoss nats a token, is beyond it. Then the first half of the sequence is tried, and so on.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace oscar {

inline constexpr std::int64_t kLeastRange = 2048;    // tokens; shorter sequences are not tried
inline constexpr std::int64_t kShortContext = 1024;  // tokens
inline constexpr double kMostLoss = 0.1;             // nats a token

// What was tried last: a length, and the mean loss over tokens of its last quarter, in nats.
struct ReadingRange {
  std::int64_t tokens = 0;                       // the longest length that the model reads well, of those tried
  std::int64_t beyond = 0;                       // the shortest that it does not; 0: none
  double beyond_loss = 0.0, beyond_short = 0.0;  // there: with all tokens, with kShortContext
};

// ids: one sequence. One forward pass over it in streamed layers, and short ones beside it. step: called with the
// number of layers done, of config().layers in each pass; may throw. Sequences of fewer than 2 kLeastRange tokens are
// not tried. NumericalError where a loss is not finite.
ReadingRange reading_range(const Checkpoint& checkpoint, at::ScalarType dtype, at::Device device,
                           const std::vector<std::int32_t>& ids,
                           const std::function<void(std::int64_t)>& step = nullptr);

// Lengths that are tried for a sequence of so many tokens, the longest first; empty: none.
std::vector<std::int64_t> tried_lengths(std::int64_t tokens);

}  // namespace oscar
