#include "codec/two_levels.h"

#include <algorithm>
#include <cmath>

#include "codec/codec.h"
#include "layout/float16.h"

namespace oscar {
namespace {

float stored_half(float x) { return round_to_float16(std::clamp(x, -65504.0f, 65504.0f)); }

void two_level_group(float* x, std::int64_t n) {
  const auto [low, high] = std::minmax_element(x, x + n);
  const float least = *low, most = *high, scale = stored_half(most - least);
  const float zero = scale > 0.0f ? stored_half(-least / scale) : 0.0f;
  // An offset that the type cannot hold next to the scale: the group is a constant.
  if (!(scale > 0.0f) || std::abs(least) > 2048.0f * scale) {
    return std::fill_n(x, n, stored_half(0.5f * least + 0.5f * most)), void();
  }
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = ((x[i] / scale + zero + 0.5f >= 1.0f ? 1.0f : 0.0f) - zero) * scale;
  }
}

}  // namespace

void two_level_rows(float* rows, std::int64_t n, std::int64_t d, std::int64_t group, float clip) {
  for (std::int64_t r = 0; r < n; ++r, rows += d) {
    clip_row({rows, static_cast<std::size_t>(d)}, clip);
    for (std::int64_t c = 0; c < d; c += group) two_level_group(rows + c, group);
  }
}

}  // namespace oscar
