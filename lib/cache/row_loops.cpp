#include "cache/row_loops.h"

#include <algorithm>
#include <cstring>

#include "codec/row_math.h"
#include "layout/float16.h"
#include "layout/row_code.h"

namespace oscar {
namespace {

constexpr int kRows = 4;  // rows per pass over the matrix

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

typedef std::uint32_t Words4 __attribute__((vector_size(16)));
typedef std::uint16_t Halves8 __attribute__((vector_size(16)));
typedef std::int32_t Ints8 __attribute__((vector_size(32)));
typedef std::uint32_t Words8 __attribute__((vector_size(32)));
typedef float Floats8 __attribute__((vector_size(32)));

OSCAR_INLINE void store(float* to, const Floats8& values) { std::memcpy(to, &values, sizeof(values)); }

// Position of a lane's fields, numbered as in page_layout.h: word W and field j of number p.
struct Place {
  int word, field, fields;
  Place(int p, int width) : word(p * width / 16), field(p * width % 16 / width), fields(16 / width) {}
  OSCAR_INLINE void next() {
    if (++field == fields) field = 0, ++word;
  }
};

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

void rotate_rows(const float* x, std::int64_t n, std::int64_t x_stride, const float* mean, const float* matrix, int d,
                 std::uint16_t* out, std::int64_t out_stride) {
  float centered[kRows * kMaxHeadDim], rotated[kRows * kMaxHeadDim];
  for (std::int64_t first = 0; first < n; first += kRows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kRows, n - first));
    for (int r = 0; r < rows; ++r) {
      const float* row = x + (first + r) * x_stride;
      for (int i = 0; i < d; ++i) centered[r * d + i] = mean != nullptr ? row[i] - mean[i] : row[i];
    }
    if (matrix != nullptr) multiply(centered, rows, matrix, d, rotated);
    const float* result = matrix != nullptr ? rotated : centered;
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < d; ++i) out[(first + r) * out_stride + i] = bfloat16_bits(result[r * d + i]);
    }
  }
}

// Eight neighboring channels of a token are the two halves of one field of four lanes.
OSCAR_VECTOR_CLONES void expand_keys(const PlaneLayout& plane, const std::uint32_t* words, int tokens, float offset,
                                     int stride, float* levels) {
  const int n = plane.channels, v = plane.vector_words();
  const auto width = static_cast<std::uint32_t>(plane.width);
  const std::uint32_t mask = ((1u << width) - 1u) * 0x10001u;
  for (int token = 0; token < tokens; ++token) {
    Place place(token / 8 * (n / 8), plane.width);
    Words4 four = {};
    float* to = levels + token * stride;
    for (int q = 0; q < n / 8; ++q, place.next(), to += 8) {
      if (q == 0 || place.field == 0) {
        const std::uint32_t* at = words + place.word / v * 32 * v + token % 8 * 4 * v + place.word % v;
        four = Words4{at[0], at[v], at[2 * v], at[3 * v]};
      }
      const Words4 codes = (four >> (static_cast<std::uint32_t>(place.field) * width)) & mask;
      Halves8 halves;
      std::memcpy(&halves, &codes, sizeof(halves));
      store(to, __builtin_convertvector(__builtin_convertvector(halves, Ints8), Floats8) + offset);
    }
  }
}

// Eight neighboring channels of a pair of tokens are one field of eight lanes, with one token in each half.
OSCAR_VECTOR_CLONES void expand_values(const PlaneLayout& plane, const std::uint32_t* words, int tokens, float offset,
                                       int stride, float* levels) {
  const int n = plane.channels, v = plane.vector_words();
  const auto width = static_cast<std::uint32_t>(plane.width);
  const std::uint32_t mask = (1u << width) - 1u;
  for (int token = 0; token < tokens; token += 2) {
    Place place(token / 16 * (n / 8), plane.width);
    Words8 eight = {};
    float* to = levels + token * stride;
    for (int q = 0; q < n / 8; ++q, place.next(), to += 8) {
      if (q == 0 || place.field == 0) {
        const int word = 2 * place.word + token % 16 / 8;
        const std::uint32_t* at = words + word / v * 32 * v + token % 8 / 2 * v + word % v;
        eight = Words8{at[0], at[4 * v], at[8 * v], at[12 * v], at[16 * v], at[20 * v], at[24 * v], at[28 * v]};
      }
      const Words8 pair = eight >> (static_cast<std::uint32_t>(place.field) * width);
      store(to, __builtin_convertvector(reinterpret_cast<Ints8>(pair & mask), Floats8) + offset);
      if (token + 1 < tokens) {
        store(to + stride, __builtin_convertvector(reinterpret_cast<Ints8>((pair >> 16) & mask), Floats8) + offset);
      }
    }
  }
}

void expand_by_table(const PlaneLayout& plane, const std::uint32_t* words, const std::uint16_t* places, int tokens,
                     float offset, int stride, float* levels) {
  const int bits = plane.width == 1 ? 5 : (plane.width == 2 ? 4 : 3);  // log2 of the number of codes in a word
  const unsigned mask = (1u << plane.width) - 1u, field = (1u << bits) - 1u;
  for (int token = 0; token < tokens; ++token) {
    for (int i = 0; i < plane.channels; ++i) {
      const unsigned place = places[token * plane.channels + i];
      const unsigned code = (words[place >> bits] >> ((place & field) * static_cast<unsigned>(plane.width))) & mask;
      levels[token * stride + i] = static_cast<float>(code) + offset;
    }
  }
}

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
