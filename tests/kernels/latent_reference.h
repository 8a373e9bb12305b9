// Decode attention of latent attention in double precision on the host: the specification of
// kernels/latent/latent_decode.h. Reads the same parameters, with pointers of the host.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/latent/latent_decode.h"

namespace oscar::kernels {

inline double bf16_value(const std::uint8_t* bytes) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, 2);
  return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
}

// One token as the reader of the format sees it: 512 latent channels, then 64 RoPE channels.
inline std::vector<double> latent_row(const LatentDecodeParams& p, int sequence, int position) {
  std::vector<double> row(kLatentRow, 0.0);
  if (position >= p.sink && position < p.lengths[sequence] - p.recent) {
    const int body = position - p.sink, slot = body % kPageTokens;
    const std::uint8_t* page =
        p.pages + p.page_table[static_cast<std::int64_t>(sequence) * p.max_pages + body / kPageTokens] * p.page_stride;
    const LatentPage layout = latent_page(p.widths);
    for (int i = 0; i < layout.codes.planes; ++i) {
      const PlaneLayout& plane = layout.codes.plane[i];
      const int first = p.refined && i + 1 == layout.codes.planes ? 0 : plane.first_channel;
      const double scale = static_cast<double>(p.sigma[plane.sigma]) *
                           std::exp2(static_cast<std::int8_t>(page[layout.codes.param_byte(slot, i)]) / 32.0);
      for (int c = 0; c < plane.channels; ++c) {
        const int bit = plane.key_bit(slot, c);
        const int code = page[plane.offset + bit / 8] >> (bit % 8) & ((1 << plane.width) - 1);
        row[static_cast<std::size_t>(first + c)] += scale * (code + 0.5 - 0.5 * (1 << plane.width));
      }
    }
    for (int c = 0; c < kRopeChannels; ++c) {
      row[static_cast<std::size_t>(kLatentChannels + c)] = bf16_value(page + layout.rope_byte(slot, c));
    }
    return row;
  }
  const int slot = position < p.sink ? position : position % (64 * p.ring_pages);
  const int column = position < p.sink ? slot / kPageTokens : p.sink_pages + slot / kPageTokens;
  const std::uint8_t* page =
      p.window_pages +
      static_cast<std::int64_t>(p.window_table[sequence * (p.sink_pages + p.ring_pages) + column]) * kLatentWindowBytes;
  for (int c = 0; c < kLatentRow; ++c) {
    row[static_cast<std::size_t>(c)] = bf16_value(page + latent_window_byte(slot % kPageTokens, c));
  }
  return row;
}

// out [B, H, 512] and lse [B, H].
inline void latent_decode_reference(const LatentDecodeParams& p, std::vector<double>& out, std::vector<double>& lse) {
  for (int b = 0; b < p.batch; ++b) {
    const int n = p.lengths[b];
    if (n == 0) {
      const std::size_t heads = static_cast<std::size_t>(p.heads), first = static_cast<std::size_t>(b) * heads;
      std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(first * kLatentChannels), heads * kLatentChannels, 0.0);
      std::fill_n(lse.begin() + static_cast<std::ptrdiff_t>(first), heads, -std::numeric_limits<double>::infinity());
      continue;
    }
    std::vector<std::vector<double>> rows;
    for (int i = 0; i < n; ++i) rows.push_back(latent_row(p, b, i));
    for (int h = 0; h < p.heads; ++h) {
      const auto query = [&](int c) {
        const bool latent = c < kLatentChannels;
        const std::uint16_t* q = latent ? p.q_latent + b * p.q_latent_stride[0] + h * p.q_latent_stride[1] + c
                                        : p.q_pe + b * p.q_pe_stride[0] + h * p.q_pe_stride[1] + c - kLatentChannels;
        return bf16_value(reinterpret_cast<const std::uint8_t*>(q));
      };
      std::vector<double> q, logits;
      for (int c = 0; c < kLatentRow; ++c) q.push_back(query(c));
      for (const std::vector<double>& row : rows) {
        double x = 0.0;
        for (std::size_t c = 0; c < row.size(); ++c) x += q[c] * row[c];
        logits.push_back(static_cast<double>(p.scale) * x);
      }
      const double top = *std::max_element(logits.begin(), logits.end());
      double sum = 0.0;
      const std::size_t at =
          static_cast<std::size_t>(b) * static_cast<std::size_t>(p.heads) + static_cast<std::size_t>(h);
      double* to = out.data() + at * kLatentChannels;
      std::fill(to, to + kLatentChannels, 0.0);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const double weight = std::exp(logits[i] - top);
        sum += weight;
        for (int c = 0; c < kLatentChannels; ++c) to[c] += weight * rows[i][static_cast<std::size_t>(c)];
      }
      for (int c = 0; c < kLatentChannels; ++c) {
        to[c] = to[c] / sum + (p.after != nullptr ? static_cast<double>(p.after[c]) : 0.0);
      }
      lse[at] = top + std::log(sum);
    }
  }
}

}  // namespace oscar::kernels
