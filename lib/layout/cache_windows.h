// Which tokens of a sequence are BF16 and which are quantized: one rule for the prefill path, the decode path, the
// kernels, the byte counts and the files. Files hold sink and recent; flush is the affair of a method.
#pragma once

#include <algorithm>
#include <cstdint>

namespace oscar {

struct CacheWindows {
  std::int64_t sink = 64;     // BF16 tokens at the start
  std::int64_t recent = 256;  // BF16 tokens at the end, the current token among them
  std::int64_t flush = 1;     // tokens leave the recent window in groups of this many

  // In a sequence of n tokens (the current one included), tokens [sink, quantized_end(n)) are quantized. With flush 1
  // the query at position i = n - 1 sees quantized keys j with sink <= j <= i - recent.
  std::int64_t quantized_end(std::int64_t n) const {
    const std::int64_t leaving = std::max<std::int64_t>(0, n - sink - recent);
    return sink + leaving / flush * flush;
  }

  // Whether a layer whose query i sees keys j with i - j < span never meets a quantized one, which has j <= i - recent.
  // The sink does not help: it lies outside of the span sooner or later. The same holds for a query that sees its chunk
  // of `span` tokens. 0: full attention.
  bool hold(std::int64_t span) const { return span > 0 && span <= recent; }
};

// Bits per element at a context of T tokens, b bits for a coded one and 16 in the windows. Blocks of `flush` tokens
// count with their mean filling.
inline double bits_with_windows(double coded_bits, const CacheWindows& windows, std::int64_t context) {
  const double tokens = static_cast<double>(std::max<std::int64_t>(context, 1));
  const double plain =
      static_cast<double>(windows.sink + windows.recent) + 0.5 * static_cast<double>(windows.flush - 1);
  return coded_bits + (16.0 - coded_bits) * std::min(plain, tokens) / tokens;
}

}  // namespace oscar
