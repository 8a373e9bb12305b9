// One row in a warp: element i of a group is in lane i % 32 as x[i / 32]. The operations and their order are as in
// lib/codec/row_math.h; this folder is compiled without contraction.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace oscar::kernels::row {

inline constexpr unsigned kAll = 0xffffffffu;

// Adds lanes 16, 8, 4, 2, 1 apart; every lane gets the sum.
__device__ inline float fold(float sum) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum = sum + __shfl_xor_sync(kAll, sum, apart);
  return sum;
}

// fold() for V values at once, a power of two up to 32, with fewer exchanges: lane i gets the sum of value i V / 32.
// The additions and their order are as in fold(): lanes pass on the values that the other half of them keeps. Values
// are chosen by masks: from conditions on elements the compiler makes addresses, and puts the array into memory.
template <int V, int kCount = V>
__device__ __forceinline__ float fold_each(float (&values)[V]) {
  constexpr int kApart = 16 * kCount / V;
  if constexpr (kCount == 1) {
    float sum = values[0];
#pragma unroll
    for (int apart = kApart; apart > 0; apart /= 2) sum = sum + __shfl_xor_sync(kAll, sum, apart);
    return sum;
  } else {
    const bool upper = (static_cast<int>(threadIdx.x % 32) & kApart) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const float low = values[i], high = values[i + kCount / 2];
      values[i] = (upper ? high : low) + __shfl_xor_sync(kAll, upper ? low : high, kApart);
    }
    return fold_each<V, kCount / 2>(values);
  }
}

// The first lane with the largest score; no score is negative.
__device__ inline int first_largest(float score) {
  const unsigned most = __reduce_max_sync(kAll, __float_as_uint(score));
  return __ffs(static_cast<int>(__ballot_sync(kAll, __float_as_uint(score) == most))) - 1;
}

// One lane's part of fixed_dot().
template <int P>
__device__ inline float part_of_dot(const float (&x)[P], const float (&y)[P], int n) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < P; ++j) {
    if (32 * j < n) sum = sum + (static_cast<int>(threadIdx.x % 32) + 32 * j < n ? x[j] * y[j] : 0.0f);
  }
  return sum;
}

// fixed_sum and fixed_dot of n elements; elements after the n-th add +0, as the CPU's padded lanes do.
template <int P>
__device__ inline float fixed_sum(const float (&x)[P], int n) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < P; ++j) {
    if (32 * j < n) sum = sum + (static_cast<int>(threadIdx.x % 32) + 32 * j < n ? x[j] : 0.0f);
  }
  return fold(sum);
}

template <int P>
__device__ inline float fixed_dot(const float (&x)[P], const float (&y)[P], int n) {
  return fold(part_of_dot(x, y, n));
}

__device__ inline float clamp(float v, float top) {
  const float low = v > 0.0f ? v : 0.0f;
  return low < top ? low : top;
}

// The integer part of clamp(v, top) as a float, for top < 2^23 and v that is a number. Adding 2^23 with rounding toward
// zero drops the fraction; conversions to int and back would take several times as long.
__device__ __forceinline__ float level(float v, float top) {
  return __fadd_rz(fminf(fmaxf(v, 0.0f), top), 0x1p23f) - 0x1p23f;
}

__device__ inline int ordered(float value) {
  const int bits = __float_as_int(value);
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
__device__ inline float from_ordered(int key) { return __int_as_float(key ^ ((key >> 31) & 0x7fffffff)); }

struct Range {
  float low, high;
};

template <int P>
__device__ inline Range range_of(const float (&x)[P], int n) {
  int low = 0x7fffffff, high = static_cast<int>(0x80000000u);
#pragma unroll
  for (int j = 0; j < P; ++j) {
    if (static_cast<int>(threadIdx.x % 32) + 32 * j < n) {
      const int key = ordered(x[j]);
      low = min(low, key), high = max(high, key);
    }
  }
  return {from_ordered(__reduce_min_sync(kAll, low)), from_ordered(__reduce_max_sync(kAll, high))};
}

template <int P>
__device__ inline float largest_magnitude(const float (&x)[P], int n) {
  unsigned largest = 0;
#pragma unroll
  for (int j = 0; j < P; ++j) {
    if (static_cast<int>(threadIdx.x % 32) + 32 * j < n) largest = max(largest, __float_as_uint(x[j]) & 0x7fffffffu);
  }
  return __uint_as_float(__reduce_max_sync(kAll, largest));
}

__device__ inline int clip_index(float rho, int d) {
  if (!(rho > 0.0f) || rho >= 1.0f) return d;
  const int index = static_cast<int>(rho * static_cast<float>(d));
  return min(index, d - 1);
}

// How many magnitudes of the warp are below each of three numbers.
struct Below {
  int first, second, third;
};

template <int P>
__device__ inline Below below(const unsigned (&magnitude)[P], unsigned first, unsigned second, unsigned third) {
  static_assert(32 * P < 1024);
  unsigned packed = 0;
#pragma unroll
  for (int j = 0; j < P; ++j) {
    packed += magnitude[j] < first ? 1u : 0u;
    packed += magnitude[j] < second ? 1u << 10 : 0u;
    packed += magnitude[j] < third ? 1u << 20 : 0u;
  }
  packed = __reduce_add_sync(kAll, packed);
  return {static_cast<int>(packed & 1023u), static_cast<int>(packed >> 10 & 1023u), static_cast<int>(packed >> 20)};
}

// Adds the two bits at `bit` and above to the number that at most `index` magnitudes are below.
template <int P>
__device__ inline void add_bits(const unsigned (&magnitude)[P], int index, int bit, unsigned& found) {
  const Below n = below(magnitude, found + (1u << bit), found + (2u << bit), found + (3u << bit));
  found += ((n.first <= index ? 1u : 0u) + (n.second <= index ? 1u : 0u) + (n.third <= index ? 1u : 0u)) << bit;
}

// Clips a row of BF16 values at the order statistic of its clip index. BF16 magnitudes have no low 16 bits.
template <int P>
__device__ inline void clip_row(float (&x)[P], int d, float rho) {
  const int index = clip_index(rho, d);
  if (index >= d) return;
  unsigned magnitude[P], largest = 0;
#pragma unroll
  for (int j = 0; j < P; ++j) {
    const bool mine = static_cast<int>(threadIdx.x % 32) + 32 * j < d;
    magnitude[j] = mine ? __float_as_uint(x[j]) & 0x7fffffffu : 0x7fffffffu;
    largest = mine ? max(largest, magnitude[j]) : largest;
  }
  // The exponent of the threshold is mostly one of the three largest.
  const unsigned top = __reduce_max_sync(kAll, largest) >> 23;
  unsigned found = 0;
  const Below n = below(magnitude, top << 23, (top > 0 ? top - 1 : 0) << 23, (top > 1 ? top - 2 : 0) << 23);
  if (n.third <= index) {
    found = (n.first <= index ? top : n.second <= index ? top - 1 : top > 1 ? top - 2 : 0) << 23;
  } else {
    for (int bit = 29; bit >= 23; bit -= 2) add_bits(magnitude, index, bit, found);
  }
  for (int bit = 21; bit > 16; bit -= 2) add_bits(magnitude, index, bit, found);
  const unsigned last = found + (1u << 16);
  if (below(magnitude, last, last, last).first <= index) found = last;
  const float threshold = __uint_as_float(found);
#pragma unroll
  for (int j = 0; j < P; ++j) {
    const float v = x[j] < -threshold ? -threshold : x[j];
    x[j] = v > threshold ? threshold : v;
  }
}

}  // namespace oscar::kernels::row
