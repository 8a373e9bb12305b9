#include "methods/hadamard_rows.h"

#include <cmath>

#include "codec/row_math.h"

namespace oscar {
namespace {

OSCAR_VECTOR_CLONES void transform(float* x, std::int64_t order, float scale) {
  for (std::int64_t half = 1; half < order; half *= 2) {
    for (std::int64_t first = 0; first < order; first += 2 * half) {
      for (std::int64_t i = first; i < first + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
  }
  for (std::int64_t i = 0; i < order; ++i) x[i] *= scale;
}

}  // namespace

void hadamard_rows(float* rows, std::int64_t count, std::int64_t stride, std::int64_t width, std::int64_t order) {
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(order)));
  for (std::int64_t r = 0; r < count; ++r) {
    for (std::int64_t first = 0; first < width; first += order) transform(rows + r * stride + first, order, scale);
  }
}

}  // namespace oscar
