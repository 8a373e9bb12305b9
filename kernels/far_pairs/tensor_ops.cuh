// Tiles of far_pair_sums.cu: rows of D BF16 numbers in shared memory, padded so that ldmatrix has no bank conflicts.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/bf16_products.cuh"

namespace oscar::kernels::far {

using namespace bf16;

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kThreads = 128, kWarpQueries = 32, kQueries = kThreads / 32 * kWarpQueries;  // per block
constexpr int kKeys = 32;                                                                  // per tile

template <int D>
using Tile = std::uint16_t[kKeys][D + 8];

// Copies rows [first, first + kRows) of a tensor with `stride` elements between rows; zeros from row `end` on.
template <int D, int kRows>
__device__ __forceinline__ void copy_rows(std::uint16_t (*to)[D + 8], const std::uint16_t* from, std::int64_t stride,
                                          int first, int end) {
#pragma unroll
  for (int i = threadIdx.x; i < kRows * D / 8; i += kThreads) {
    const int r = i / (D / 8), c = i % (D / 8) * 8, row = first + r;
    copy16(&to[r][c], from + (row < end ? row : 0) * stride + c, row < end);
  }
}

// Sum over the four lanes that hold the columns of a row.
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ __forceinline__ std::uint32_t pack(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

}  // namespace oscar::kernels::far
