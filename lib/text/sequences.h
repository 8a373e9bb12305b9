// The token sequences that a run scores: one document cut into windows of equal length that do not overlap.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/cache_windows.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

struct SequenceOptions {
  std::int64_t context = 2048;         // tokens of each sequence, the leading special token included
  std::int64_t max_tokens = 0;         // of the text; 0: all
  std::int64_t max_sequences = 0;      // 0: all
  std::int64_t max_position = 0;       // of the model; 0: unknown
  std::vector<std::int32_t> prefix;    // BOS, where the tokenizer writes one: each sequence starts with it
  std::string text_name = "the text";  // what messages call it
};

struct SequenceSet {
  std::vector<std::vector<std::int32_t>> sequences;  // [S][context]
  std::int64_t context = 0;
  std::int64_t text_tokens = 0;    // of the whole text
  std::int64_t unused_tokens = 0;  // of them, those in no sequence
};

// UsageError for a context that leaves no position with a quantized key, or beyond the model's, or for negative counts.
void check_sequence_options(const SequenceOptions& options, const CacheWindows& windows);

// A text shorter than one context becomes one shorter sequence. UsageError for a context that leaves no position with
// a quantized key, or beyond the model's; InputError for a text too short to leave the BF16 windows.
SequenceSet cut_sequences(const std::vector<std::int32_t>& document, const SequenceOptions& options,
                          const CacheWindows& windows);

// The special tokens that the tokenizer puts before a text (BOS, or none).
std::vector<std::int32_t> leading_special_tokens(const Tokenizer& tokenizer);

// Of a text that came as ids, without a tokenizer: the model's BOS (-1: none) where the text begins with it.
std::vector<std::int32_t> leading_bos(const std::vector<std::int32_t>& ids, std::int64_t bos);

// Position of the first query that sees a quantized key, for windows that let tokens go one by one.
inline std::int64_t first_scored_position(const CacheWindows& windows) { return windows.sink + windows.recent; }

}  // namespace oscar
