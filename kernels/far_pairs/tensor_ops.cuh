// Tiles of far_pair_sums.cu: rows of D BF16 numbers in shared memory, padded so that ldmatrix has no bank conflicts.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/bf16_products.cuh"
#include "kernels/far_pairs/far_pair_sums.h"

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

// The results of a query (row). value(n, i): this lane's sum of the values' channel 8 n + 2 (lane % 4) + i; seen,
// norms: its part of these sums. All four lanes of the row call it.
template <int D, class Value>
__device__ __forceinline__ void write_query(const FarPairsParams& p, int head, int lane, int query, int end, float seen,
                                            float norms, const Value& value) {
  const bool live = query < end;
  const std::int64_t at = static_cast<std::int64_t>(head) * p.count + (live ? query - p.first : 0);
  float dot = 0.0f, square = 0.0f;
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const int column = 8 * n + lane % 4 * 2;
    float2 w = *reinterpret_cast<const float2*>(p.w + at * D + column);
    const float2 center = *reinterpret_cast<const float2*>(p.center + head * D + column);
    w.x = __fsub_rn(w.x, center.x), w.y = __fsub_rn(w.y, center.y);
    dot += w.x * value(n, 0) + w.y * value(n, 1);
    square += w.x * w.x + w.y * w.y;
  }
  dot = row_sum(dot), square = row_sum(square), seen = row_sum(seen), norms = row_sum(norms);
  if (live && lane % 4 == 0) {
    p.moved[at] = fmaxf(square * seen - 2.0f * dot + norms, 0.0f);
    p.seen[at] = seen;
  }
}

__device__ __forceinline__ std::uint32_t pack(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

}  // namespace oscar::kernels::far
