// Which tokens of a sequence are BF16 and which are quantized: one rule for prefill path, decode path, kernels, byte
// counts and files. Files hold sink and recent; flush belongs to the method.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/quantized_end.h"

namespace oscar {

struct CacheWindows {
  std::int64_t sink = 64;     // BF16 tokens at the start
  std::int64_t recent = 256;  // BF16 tokens at the end, including the current token
  std::int64_t flush = 1;     // tokens leave the recent window in groups of this many

  // In a sequence of n tokens (including the current one), tokens [sink, quantized_end(n)) are quantized. With flush 1
  // the query at position i = n - 1 sees quantized keys j with sink <= j <= i - recent.
  std::int64_t quantized_end(std::int64_t n) const { return oscar::quantized_end(n, sink, recent, flush); }

  // True if a layer whose query i sees keys j with i - j < span never meets a quantized key, for which j <= i - recent.
  // The sink does not help, since it leaves the span at some point. The same holds for a query that sees its chunk of
  // `span` tokens. 0: full attention.
  bool hold(std::int64_t span) const { return span > 0 && span <= recent; }
  bool operator==(const CacheWindows&) const = default;
};

// Bits per element at a context of T tokens, with b bits for a coded token and 16 in the windows. Blocks of `flush`
// tokens count half full, their mean filling.
inline double bits_with_windows(double coded_bits, const CacheWindows& windows, std::int64_t context) {
  const double tokens = static_cast<double>(std::max<std::int64_t>(context, 1));
  const double plain =
      static_cast<double>(windows.sink + windows.recent) + 0.5 * static_cast<double>(windows.flush - 1);
  return coded_bits + (16.0 - coded_bits) * std::min(plain, tokens) / tokens;
}

// The mean with channels beside the coded ones, which stay in BF16 (latent attention): of `coded` and `beside`
// channels.
inline double bits_with_beside(double bits, std::int64_t coded, std::int64_t beside) {
  return (bits * static_cast<double>(coded) + 16.0 * static_cast<double>(beside)) / static_cast<double>(coded + beside);
}

}  // namespace oscar
