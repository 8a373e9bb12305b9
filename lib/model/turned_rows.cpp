#include "model/turned_rows.h"

#include <algorithm>

#include "base/vector_math.h"

namespace oscar {
namespace {

using vector_math::Floats;
using vector_math::kLanes;

OSCAR_VECTOR_INLINE void turn_part(const float* first, const float* second, const float* cos, const float* sin,
                                   float* out_first, float* out_second) {
  Floats a, b, c, s;
  vector_math::load(a, first), vector_math::load(b, second), vector_math::load(c, cos), vector_math::load(s, sin);
  vector_math::store(out_first, a * c - b * s);
  vector_math::store(out_second, b * c + a * s);
}

}  // namespace

OSCAR_FLOAT_CLONES void turn_row(const float* x, std::int64_t heads, std::int64_t d, const float* cos, const float* sin,
                                 std::int64_t pairs, float* out) {
  for (std::int64_t h = 0; h < heads; ++h, x += d, out += d) {
    std::int64_t i = 0;
    for (; i + kLanes <= pairs; i += kLanes) {
      turn_part(x + i, x + pairs + i, cos + i, sin + i, out + i, out + pairs + i);
    }
    for (; i < pairs; ++i) {
      out[i] = x[i] * cos[i] - x[pairs + i] * sin[i];
      out[pairs + i] = x[pairs + i] * cos[i] + x[i] * sin[i];
    }
    std::copy(x + 2 * pairs, x + d, out + 2 * pairs);
  }
}

}  // namespace oscar
