// A KV head's query heads as operand B of the code tiles. Every warp makes its own from global memory: no barrier, and
// all loads are in flight together.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/decode/mma.cuh"

namespace oscar::kernels {

// Lane 4 g + t holds head 8 n + g, channels 16 step + 8 r + 2t + {0, 1} as a pair.
template <int D, int NT>
struct QueryPairs {
  std::uint32_t pair[NT][D / 16][2];

  // q: [group, D] BF16 as pairs. Heads past the group are zero.
  __device__ __forceinline__ void load(const std::uint32_t* q, int group, int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const bool live = 8 * n + g < group;
      const std::uint32_t* row = q + (8 * n + g) * (D / 2) + t;
#pragma unroll
      for (int step = 0; step < D / 16; ++step)
#pragma unroll
        for (int r = 0; r < 2; ++r) pair[n][step][r] = live ? __ldg(row + 8 * step + 4 * r) : 0u;
    }
  }
};

// The power of two that brings `largest`, the bits of a non-negative float, into [2^13, 2^14): small enough for FP16,
// large enough that what the code fields divide by stays a normal number.
__device__ __forceinline__ float query_factor(std::uint32_t largest) {
  if (largest == 0) return 1.0f;
  const int exponent = min(max(2 * 127 + 13 - static_cast<int>(largest >> 23), 1), 254);
  return __uint_as_float(static_cast<std::uint32_t>(exponent) << 23);
}

// Sum over the four lanes of a head, brought to the lanes of its columns: {head 8 n + 2t, head 8 n + 2t + 1}.
__device__ __forceinline__ void head_sums(float x, int lane, float (&sum)[2]) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  x += __shfl_xor_sync(0xffffffffu, x, 2);
  sum[0] = __shfl_sync(0xffffffffu, x, 8 * (lane & 3));
  sum[1] = __shfl_sync(0xffffffffu, x, 8 * (lane & 3) + 4);
}

}  // namespace oscar::kernels
