// The codes in each 32-bit word of a plane: the inverse of PlaneLayout::key_bit and value_bit, so that one thread can
// assemble a word.
#pragma once

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar::kernels {

struct CodePlace {
  int token, channel;  // channel: within the plane
};

// The code at field f (from the lowest bits) of word `index` of the plane.
OSCAR_HOST_DEVICE constexpr CodePlace code_at(const PlaneLayout& plane, bool value_side, int index, int f) {
  const int n = plane.channels, fields = 16 / plane.width;
  if (!plane.fragment_order()) {
    const int i = index * 2 * fields + f;
    return {i / n, i % n};
  }
  const int v = plane.vector_words();
  const int word = index / (32 * v) * v + index % v, lane = index / v % 32;
  const int h = f / fields, j = f % fields, g = lane / 4, t = lane % 4;
  if (!value_side) {
    const int p = word * fields + j;
    return {8 * (p / (n / 8)) + g, 8 * (p % (n / 8)) + 2 * t + h};
  }
  int b = 0, p = 0;
  if (n * plane.width % 32 == 0) {
    b = word % 2;
    p = word / 2 * fields + j;
  } else {
    const int q = word * fields + j;
    b = q / (n / 2);
    p = q % (n / 2);
  }
  return {16 * (p / (n / 8)) + 8 * b + 2 * t + h, 8 * (p % (n / 8)) + g};
}

// Checks that code_at() finds every code of a plane.
constexpr bool pack_agrees(int channels, int width, bool value_side) {
  const PlaneLayout plane{0, channels, width, 0, 0};
  for (int index = 0; index < plane.bytes() / 4; index += 7) {  // a sample: compilers limit constexpr steps
    for (int f = 0; f < 32 / width; ++f) {
      const CodePlace at = code_at(plane, value_side, index, f);
      const int bit = value_side ? plane.value_bit(at.token, at.channel) : plane.key_bit(at.token, at.channel);
      if (bit != 32 * index + width * f) return false;
    }
  }
  return true;
}
static_assert(pack_agrees(128, 2, false) && pack_agrees(128, 2, true) && pack_agrees(32, 4, false) &&
              pack_agrees(32, 1, true) && pack_agrees(16, 1, true) && pack_agrees(24, 2, false) &&
              pack_agrees(48, 1, true));

}  // namespace oscar::kernels
