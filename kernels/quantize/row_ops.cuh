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
// The additions and their order are as in fold(): lanes pass on the values that the other half of them keeps.
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

// Clips a row of BF16 values at the order statistic of its clip index. BF16 magnitudes have no low 16 bits.
template <int P>
__device__ inline void clip_row(float (&x)[P], int d, float rho) {
  const int index = clip_index(rho, d);
  if (index >= d) return;
  unsigned magnitude[P];
  unsigned used = 0;
#pragma unroll
  for (int j = 0; j < P; ++j) {
    const bool mine = static_cast<int>(threadIdx.x % 32) + 32 * j < d;
    magnitude[j] = mine ? __float_as_uint(x[j]) & 0x7fffffffu : 0x7fffffffu;
    used |= mine ? magnitude[j] : 0u;
  }
  used = __reduce_or_sync(kAll, used);
  unsigned found = 0;
  for (int bit = 30; bit >= 16; --bit) {
    if ((used >> bit) == 0) continue;
    const unsigned candidate = found | (1u << bit);
    int smaller = 0;
#pragma unroll
    for (int j = 0; j < P; ++j) smaller += magnitude[j] < candidate ? 1 : 0;
    if (__reduce_add_sync(kAll, smaller) <= index) found = candidate;
  }
  const float threshold = __uint_as_float(found);
#pragma unroll
  for (int j = 0; j < P; ++j) {
    const float v = x[j] < -threshold ? -threshold : x[j];
    x[j] = v > threshold ? threshold : v;
  }
}

}  // namespace oscar::kernels::row
