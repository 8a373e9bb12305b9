// A KV head's query heads as operand of the code tiles (head_fragment.cuh). Every warp makes its own from global
// memory: no barrier, and all loads are in flight together.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/decode/head_fragment.cuh"

namespace oscar::kernels {

// The power of two that brings `largest`, the bits of a non-negative float, into [2^13, 2^14). This is small enough for
// FP16, and large enough that the query stays a normal number after division by the code fields' factors.
__device__ __forceinline__ float query_factor(std::uint32_t largest) {
  if (largest == 0) return 1.0f;
  const int exponent = min(max(2 * 127 + 13 - static_cast<int>(largest >> 23), 1), 254);
  return __uint_as_float(static_cast<std::uint32_t>(exponent) << 23);
}

// 2^24 over a query_factor(): undoes it and the units of the codes. Replaces a division, which is a call.
__device__ __forceinline__ float query_unscale(float factor) {
  return __uint_as_float(min(2 * 127 + 24 - (__float_as_uint(factor) >> 23), 254u) << 23);
}

// D channels of the heads. Lane 4 g + t holds, as a pair in word r NT + n, channels 16 step + 8 r + 2t + {0, 1} of head
// 8 n + g.
template <int D, int NT>
struct QueryPairs {
  std::uint32_t pair[D / 16][2 * NT];

  // q: BF16 as pairs, [gqa_group, row_pairs], whose channels begin at pair `first`. Heads after the group are zero.
  __device__ __forceinline__ void load(const std::uint32_t* q, int row_pairs, int first, int gqa_group, int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const bool live = 8 * n + g < gqa_group;
      const std::uint32_t* row = q + (8 * n + g) * row_pairs + first + t;
#pragma unroll
      for (int step = 0; step < D / 16; ++step)
#pragma unroll
        for (int r = 0; r < 2; ++r) pair[step][r * NT + n] = live ? __ldg(row + 8 * step + 4 * r) : 0u;
    }
  }
  // The largest of the warp's elements, as the bits of a float. All lanes must call it.
  __device__ __forceinline__ std::uint32_t largest() const {
    std::uint32_t top = 0;  // non-negative floats compare like their bits
#pragma unroll
    for (int step = 0; step < D / 16; ++step)
#pragma unroll
      for (int k = 0; k < 2 * NT; ++k)
        top = max(top, max(pair[step][k] << 16 & 0x7fff0000u, pair[step][k] & 0x7fff0000u));
    return __reduce_max_sync(0xffffffffu, top);
  }
  // The factor that brings the elements into FP16's range.
  __device__ __forceinline__ float factor() const { return query_factor(largest()); }
};

}  // namespace oscar::kernels
