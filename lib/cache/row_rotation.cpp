#include "cache/row_rotation.h"

#include <algorithm>

#include "codec/codec.h"
#include "codec/row_math.h"
#include "layout/float16.h"

namespace oscar {
namespace {

constexpr int kRows = 4;  // rows that share a pass over the matrix

OSCAR_VECTOR_CLONES void multiply(const float* x, int rows, const float* matrix, int d, float* y) {
  std::fill_n(y, rows * d, 0.0f);
  for (int i = 0; i < d; ++i) {
    const float* m = matrix + static_cast<std::int64_t>(i) * d;
    for (int r = 0; r < rows; ++r) {
      const float v = x[r * d + i];
      float* out = y + r * d;
      for (int j = 0; j < d; ++j) out[j] += v * m[j];
    }
  }
}

}  // namespace

void rotate_rows(const float* x, std::int64_t n, std::int64_t x_stride, const float* mean, const float* matrix, int d,
                 std::uint16_t* out, std::int64_t out_stride) {
  float centred[kRows * kMaxHeadDim], rotated[kRows * kMaxHeadDim];
  for (std::int64_t first = 0; first < n; first += kRows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kRows, n - first));
    for (int r = 0; r < rows; ++r) {
      const float* row = x + (first + r) * x_stride;
      for (int i = 0; i < d; ++i) centred[r * d + i] = mean != nullptr ? row[i] - mean[i] : row[i];
    }
    if (matrix != nullptr) multiply(centred, rows, matrix, d, rotated);
    const float* result = matrix != nullptr ? rotated : centred;
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < d; ++i) out[(first + r) * out_stride + i] = bfloat16_bits(result[r * d + i]);
    }
  }
}

}  // namespace oscar
