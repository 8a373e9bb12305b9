// Codes of one plane of a page as floats in natural order: levels[token * stride + channel] = code + offset.
// Internal to the page reader.
#pragma once

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar {

// words: the plane, [bytes / 4]. For planes in fragment order; values also need an even number of words in a lane.
inline bool expands_keys(const PlaneLayout& plane) { return plane.fragment_order(); }
inline bool expands_values(const PlaneLayout& plane) {
  return plane.fragment_order() && plane.channels * plane.width % 32 == 0;
}
void expand_keys(const PlaneLayout& plane, const std::uint32_t* words, int tokens, float offset, int stride,
                 float* levels);
void expand_values(const PlaneLayout& plane, const std::uint32_t* words, int tokens, float offset, int stride,
                   float* levels);
// Any plane, by a table: code i at places[i] in units of its width, i = token * channels + channel.
void expand_by_table(const PlaneLayout& plane, const std::uint32_t* words, const std::uint16_t* places, int tokens,
                     float offset, int stride, float* levels);

}  // namespace oscar
