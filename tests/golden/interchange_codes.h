// The codes of a row as golden vectors hold them, where no page layout orders them: the interchange view of
// docs/format-codec.md. uniform: byte b of d/4 = q[b] | q[b + d/4] << 2 | q[b + d/2] << 4 | q[b + 3d/4] << 6. blocks:
// block after block; channel i of a block is at bits [i w, (i + 1) w), counted from the lowest bit of its first byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "layout/row_code.h"

namespace oscar {

// Calls visit(channel, width, bit) for each channel with a code; bit counts from the row's first byte.
template <typename Visit>
void visit_codes(const RowCode& code, const Visit& visit) {
  std::size_t bit = 0, d = static_cast<std::size_t>(code.head_dim);
  for (std::size_t channel = 0; channel < d; ++channel) {
    if (code.layout == Layout::kUniform) {
      visit(channel, 2, 8 * (channel % (d / 4)) + 2 * (channel / (d / 4)));
      continue;
    }
    const int width = code.widths[channel / static_cast<std::size_t>(code.band_channels())];
    if (width > 0) visit(channel, width, bit);
    bit += static_cast<std::size_t>(width);
  }
}

// codes: [d], one per byte; bytes: [code_bytes].
inline void pack_codes(const RowCode& code, std::span<const std::uint8_t> codes, std::span<std::uint8_t> bytes) {
  std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
  visit_codes(code, [&](std::size_t channel, int, std::size_t bit) {
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] | codes[channel] << (bit % 8));
  });
}

// The codes of bytes; 0 in blocks without codes.
inline void unpack_codes(const RowCode& code, std::span<const std::uint8_t> bytes, std::span<std::uint8_t> codes) {
  std::fill(codes.begin(), codes.end(), std::uint8_t{0});
  visit_codes(code, [&](std::size_t channel, int width, std::size_t bit) {
    codes[channel] = static_cast<std::uint8_t>(bytes[bit / 8] >> (bit % 8) & ((1u << width) - 1u));
  });
}

}  // namespace oscar
