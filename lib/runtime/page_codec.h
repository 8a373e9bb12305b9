// Writes and reads the rows of a page (page_layout.h) on the CPU: codes and parameters in the form of codec.h on one
// side, bytes of the page on the other.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/codec.h"
#include "runtime/page_layout.h"

namespace oscar {

PageLayout page_layout(const RowCode& key, const RowCode& value);

// Keys or values of pages of one layout.
class SidePages {
 public:
  SidePages(const SideLayout& layout, Side side);

  // codes: [d], params: [param_bytes of the row] as encode_rows writes them. Token 0..63.
  void write(std::uint8_t* page, int token, const std::uint8_t* codes, const std::uint8_t* params) const;
  void read(const std::uint8_t* page, int token, std::uint8_t* codes, std::uint8_t* params) const;

  // A run of channels with its own scale in each token.
  struct Segment {
    int first_channel, channels;
  };
  const std::vector<Segment>& segments() const { return segments_; }

  // The first `tokens` rows as xhat = scale (level - zero). levels: [tokens, d] (0 in channels of width 0);
  // scale, zero: [segments, 64]. sigma: [4], read by blocks alone.
  void read_levels(const std::uint8_t* page, int tokens, const float* sigma, float* levels, float* scale,
                   float* zero) const;

 private:
  SideLayout layout_;
  Side side_;
  std::vector<Segment> segments_;
  // Per plane: place of each code in units of its width, [tokens, channels].
  std::vector<std::vector<std::uint16_t>> places_;
};

}  // namespace oscar
