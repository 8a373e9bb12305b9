// A uniform sample of token rows, drawn as a bottom-k sample: each token has a pseudo-random priority, and the k
// smallest are kept. The choice depends only on (seed, prompt set, sequence, position). The bottom-k of merged samples
// is the bottom-k of all tokens (Cohen and Kaplan 2007).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace oscar {

struct SampledToken {
  std::uint64_t priority = 0;
  std::int64_t sequence = 0, position = 0;
  std::int64_t token = 0;  // index over all tokens of the run
};

std::uint64_t token_priority(std::uint64_t seed, std::string_view prompt_set_sha256, std::int64_t sequence,
                             std::int64_t position);

struct SampledSequence {
  std::int64_t number = 0;  // the number that enters its priorities
  std::int64_t length = 0;  // tokens
};

// The k tokens of smallest priority over these sequences, in ascending priority. `sequence` is the number; `token`
// counts over the given sequences. Memory: k entries.
std::vector<SampledToken> sample_sequences(std::uint64_t seed, std::string_view prompt_set_sha256,
                                           const std::vector<SampledSequence>& sequences, std::int64_t k);

}  // namespace oscar
