// What the kernels of the decode-step benchmark share: BF16 pairs in words, sums over a block, the order of an argmax.
#pragma once

#include "tests/bench/decode_step/step_kernels.h"

namespace oscar::bench {

inline constexpr int kThreads = 256, kWarps = kThreads / 32;

__device__ __forceinline__ float low(std::uint32_t x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(std::uint32_t x) { return __uint_as_float(x & 0xffff0000u); }

__device__ __forceinline__ uint4 load_stream(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ float dot8(uint4 a, uint4 b, float sum) {
  sum = fmaf(low(a.x), low(b.x), sum), sum = fmaf(high(a.x), high(b.x), sum);
  sum = fmaf(low(a.y), low(b.y), sum), sum = fmaf(high(a.y), high(b.y), sum);
  sum = fmaf(low(a.z), low(b.z), sum), sum = fmaf(high(a.z), high(b.z), sum);
  sum = fmaf(low(a.w), low(b.w), sum), sum = fmaf(high(a.w), high(b.w), sum);
  return sum;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

__device__ __forceinline__ float block_total(float x, float* scratch) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0.0f;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) total += scratch[w];
  __syncthreads();
  return total;
}

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

// Larger values first, then smaller rows.
__device__ __forceinline__ unsigned long long packed(float value, int row) {
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 | (0xffffffffu - static_cast<std::uint32_t>(row));
}

}  // namespace oscar::bench
