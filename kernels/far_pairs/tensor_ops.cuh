// Loads, products and tiles of far_pairs.cu: rows of D BF16 numbers in shared memory, padded so that ldmatrix meets no
// bank twice.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace oscar::kernels::far {

constexpr int kThreads = 128, kWarpQueries = 32, kQueries = kThreads / 32 * kWarpQueries;  // of a block
constexpr int kKeys = 32;                                                                  // of a tile

template <int D>
using Tile = std::uint16_t[kKeys][D + 8];

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void load(std::uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}

__device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Begins to copy 16 bytes, or zeros where the source has none.
__device__ __forceinline__ void copy16(std::uint16_t* to, const std::uint16_t* from, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(live ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// Rows [first, first + kRows) of a tensor with `stride` elements between rows; zeros from row `end` on.
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
