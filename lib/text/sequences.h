// The token sequences that a run scores: one document cut into non-overlapping windows of equal length.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/cache_windows.h"
#include "text/tokenizer/tokenizer.h"

namespace oscar {

struct SequenceOptions {
  std::int64_t context = 2048;         // tokens per sequence, including the leading special token
  std::int64_t max_tokens = 0;         // of the text; 0: all
  std::int64_t max_sequences = 0;      // 0: all
  std::int64_t max_position = 0;       // the model's maximum; 0: unknown
  std::vector<std::int32_t> prefix;    // BOS, if the tokenizer adds one; each sequence starts with it
  std::string text_name = "the text";  // the text's name in messages
};

struct SequenceSet {
  std::vector<std::vector<std::int32_t>> sequences;  // [S][context]
  std::int64_t context = 0;
  std::int64_t text_tokens = 0;    // in the full text
  std::int64_t unused_tokens = 0;  // tokens in no sequence

  std::vector<std::int32_t> used(std::size_t prefix) const;  // the text in the sequences, without their prefixes
};

// UsageError for negative counts, and for a context beyond the model's or without a position that sees a quantized key.
void check_sequence_options(const SequenceOptions& options, const CacheWindows& windows);

// A text shorter than one context becomes one shorter sequence. UsageError for a context beyond the model's or without
// a position that sees a quantized key. InputError if the text does not extend past the BF16 windows.
SequenceSet cut_sequences(const std::vector<std::int32_t>& document, const SequenceOptions& options,
                          const CacheWindows& windows);

// The special tokens that the tokenizer adds before a text (BOS, or none).
std::vector<std::int32_t> leading_special_tokens(const Tokenizer& tokenizer);

// For a text given as ids, without a tokenizer: the model's BOS (-1: none) if the text starts with it.
std::vector<std::int32_t> leading_bos(const std::vector<std::int32_t>& ids, std::int64_t bos);

// Position of the first query that sees a quantized key, for windows that release tokens one by one.
inline std::int64_t first_scored_position(const CacheWindows& windows) { return windows.sink + windows.recent; }

}  // namespace oscar
