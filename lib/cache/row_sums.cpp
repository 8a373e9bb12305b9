#include "cache/row_sums.h"

#include <cstring>

#include "codec/row_math.h"
#include "layout/float16.h"

namespace oscar {
namespace {

constexpr int kLanes = 16;
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));

OSCAR_INLINE float dot(const float* x, const float* y, int n) {
  Vector sum = {}, a, b;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    std::memcpy(&a, x + i, sizeof(a));
    std::memcpy(&b, y + i, sizeof(b));
    sum += a * b;
  }
  float lanes[kLanes], total = 0.0f;
  std::memcpy(lanes, &sum, sizeof(lanes));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  for (total = lanes[0]; i < n; ++i) total += x[i] * y[i];
  return total;
}

}  // namespace

OSCAR_VECTOR_CLONES void row_dots(const float* q, const float* rows, int tokens, int n, int d, float* dots) {
  for (int t = 0; t < tokens; ++t) dots[t] = dot(q, rows + t * d, n);
}

OSCAR_VECTOR_CLONES void add_rows(const float* weight, const float* rows, int tokens, int n, int d, float* output) {
  for (int t = 0; t < tokens; ++t) {
    const float w = weight[t];
    const float* row = rows + t * d;
    for (int i = 0; i < n; ++i) output[i] += w * row[i];
  }
}

OSCAR_VECTOR_CLONES void widen_row(const std::uint16_t* bits, int n, float* values) {
  for (int i = 0; i < n; ++i) values[i] = bfloat16_value(bits[i]);
}

}  // namespace oscar
