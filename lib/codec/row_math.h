// The loops that all encoders share, over one row of at most kMaxHeadDim floats. They are inlined into functions that
// the compiler clones for wider vectors. All clones give the same bits: integer reductions do not depend on order, the
// only float sum has a fixed order, and this folder is compiled without contraction.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

// Clones need GNU indirect functions; sanitizer builds use the baseline. Tests build the codec without clones for
// chosen instruction sets.
#if !defined(OSCAR_NO_VECTOR_CLONES) && defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && \
    !defined(__SANITIZE_ADDRESS__)
#define OSCAR_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define OSCAR_VECTOR_CLONES
#endif
#define OSCAR_INLINE inline __attribute__((always_inline))

namespace oscar::row_math {

constexpr int kLanes = 32;  // lanes of the fixed sum

// Sums of n floats in the fixed order: lane l of 32 adds elements l, l + 32, l + 64, ... in turn (from +0). Then lanes
// 16, 8, 4, 2, 1 apart are added: the order of a butterfly reduction over a warp.
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

typedef float Lanes16 __attribute__((vector_size(64)));
typedef float Lanes8 __attribute__((vector_size(32)));
typedef float Lanes4 __attribute__((vector_size(16)));

OSCAR_INLINE float fold(const Lanes& x) {
  const Lanes16 low = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const Lanes16 high = __builtin_shufflevector(x, x, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
  const Lanes16 a = low + high;
  const Lanes8 b = __builtin_shufflevector(a, a, 0, 1, 2, 3, 4, 5, 6, 7) +
                   __builtin_shufflevector(a, a, 8, 9, 10, 11, 12, 13, 14, 15);
  const Lanes4 c = __builtin_shufflevector(b, b, 0, 1, 2, 3) + __builtin_shufflevector(b, b, 4, 5, 6, 7);
  return (c[0] + c[2]) + (c[1] + c[3]);
}

OSCAR_INLINE float fixed_sum(const float* x, int n) {
  Lanes sum = {}, a;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    std::memcpy(&a, x + i, sizeof(a));
    sum += a;
  }
  if (i < n) {
    a = Lanes{};
    std::memcpy(&a, x + i, static_cast<std::size_t>(n - i) * sizeof(float));
    sum += a;
  }
  return fold(sum);
}

OSCAR_INLINE float fixed_dot(const float* x, const float* y, int n) {  // each product is rounded before it is added
  Lanes sum = {}, a, b;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    std::memcpy(&a, x + i, sizeof(a));
    std::memcpy(&b, y + i, sizeof(b));
    sum += a * b;
  }
  if (i < n) {
    a = b = Lanes{};
    std::memcpy(&a, x + i, static_cast<std::size_t>(n - i) * sizeof(float));
    std::memcpy(&b, y + i, static_cast<std::size_t>(n - i) * sizeof(float));
    sum += a * b;
  }
  return fold(sum);
}

OSCAR_INLINE float clamp(float v, float top) {  // to [0, top]
  const float low = v > 0.0f ? v : 0.0f;
  return low < top ? low : top;
}

OSCAR_INLINE std::int32_t ordered(float value) {  // maps floats to integers of the same order, -0 below +0
  const std::int32_t bits = std::bit_cast<std::int32_t>(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
OSCAR_INLINE float from_ordered(std::int32_t key) { return std::bit_cast<float>(key ^ ((key >> 31) & 0x7fffffff)); }

struct Range {
  float low, high;
};

OSCAR_INLINE Range range_of(const float* x, int n) {
  std::int32_t low = ordered(x[0]), high = low;
  for (int i = 0; i < n; ++i) {
    const std::int32_t key = ordered(x[i]);
    low = key < low ? key : low;
    high = key > high ? key : high;
  }
  return {from_ordered(low), from_ordered(high)};
}

// |x| as integers; returns false if a value is NaN or infinite. used_bits: OR of all magnitudes.
OSCAR_INLINE bool magnitudes(const float* x, int n, std::uint32_t* magnitude, std::uint32_t* used_bits) {
  std::int32_t largest = 0;
  std::uint32_t used = 0;
  for (int i = 0; i < n; ++i) {
    const std::uint32_t m = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu;
    magnitude[i] = m;
    largest = static_cast<std::int32_t>(m) > largest ? static_cast<std::int32_t>(m) : largest;
    used |= m;
  }
  *used_bits = used;
  return largest < 0x7f800000;
}

// max |x|. A result of infinity or above means that a value is not finite (compare the bits: it may be a NaN).
OSCAR_INLINE float largest_magnitude(const float* x, int n) {
  std::int32_t largest = 0;
  for (int i = 0; i < n; ++i) {
    const std::int32_t m = std::bit_cast<std::int32_t>(x[i]) & 0x7fffffff;
    largest = m > largest ? m : largest;
  }
  return std::bit_cast<float>(largest);
}

OSCAR_INLINE bool all_finite(const float* x, int n) {
  return std::bit_cast<std::int32_t>(largest_magnitude(x, n)) < 0x7f800000;
}

// The value at index k of the n magnitudes in ascending order, found bit by bit from the top. A bit is set if at most k
// magnitudes are smaller than the prefix with that bit. Rows rounded to BF16 have no low 16 bits.
OSCAR_INLINE std::uint32_t order_statistic(const std::uint32_t* magnitude, int n, int k, std::uint32_t used_bits) {
  std::int32_t found = 0;
  const int last = (used_bits & 0xffffu) == 0 ? 16 : 0;
  for (int bit = 30; bit >= last; --bit) {
    if ((used_bits >> bit) == 0) continue;
    const std::int32_t candidate = found | (1 << bit);
    std::int32_t smaller = 0;
    for (int i = 0; i < n; ++i) smaller += static_cast<std::int32_t>(magnitude[i]) < candidate ? 1 : 0;
    if (smaller <= k) found = candidate;
  }
  return static_cast<std::uint32_t>(found);
}

// Index of the clip threshold; d if clipping is off.
OSCAR_INLINE int clip_index(float rho, int d) {
  if (!(rho > 0.0f) || rho >= 1.0f) return d;
  const int index = static_cast<int>(rho * static_cast<float>(d));
  return index < d - 1 ? index : d - 1;
}

// Copies the row to `out`, clipped: to the ascending |x| at index min(int(rho d), d - 1), the product in single
// precision. rho <= 0 or rho >= 1: off. Returns false if the row is not finite. d <= kMaxHeadDim of codec.h.
OSCAR_INLINE bool load_clipped(const float* x, int d, float rho, std::uint32_t* scratch, float* out) {
  const int index = clip_index(rho, d);
  if (index >= d) {
    if (!all_finite(x, d)) return false;
    std::memcpy(out, x, static_cast<std::size_t>(d) * sizeof(float));
    return true;
  }
  std::uint32_t used = 0;
  if (!magnitudes(x, d, scratch, &used)) return false;
  const float threshold = std::bit_cast<float>(order_statistic(scratch, d, index, used));
  for (int i = 0; i < d; ++i) {
    const float v = x[i] < -threshold ? -threshold : x[i];
    out[i] = v > threshold ? threshold : v;
  }
  return true;
}

}  // namespace oscar::row_math
