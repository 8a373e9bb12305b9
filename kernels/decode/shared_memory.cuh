// Access to shared memory by 32-bit addresses. With pointers the compiler recomputes addresses wherever registers are
// short, which is everywhere in the decode kernels: a tenth of a page's instructions.
#pragma once

#include <cstdint>

namespace oscar::kernels {

using SharedAddress = std::uint32_t;

__device__ __forceinline__ SharedAddress shared_address(const void* p) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(p));
}
// Keeps a value in its register instead of recomputing it.
template <class T>
__device__ __forceinline__ void keep(T& x) {
  static_assert(sizeof(T) == 4);
  asm volatile("" : "+r"(x));
}
// The same if the assembler would also recompute the value, or move it to the warp's uniform registers, whose branches
// are slower. The assembler does not see through a shuffle. All lanes must call it.
template <class T>
__device__ __forceinline__ T pinned(T x, int lane) {
  return __shfl_sync(0xffffffffu, x, lane);
}

__device__ __forceinline__ std::uint32_t load_shared_4(SharedAddress at) {
  std::uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at));
  return x;
}
__device__ __forceinline__ uint2 load_shared_8(SharedAddress at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at));
  return x;
}
__device__ __forceinline__ uint4 load_shared_16(SharedAddress at) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at));
  return x;
}
// N floats, four at a time; stride: bytes between groups of four.
template <int N>
__device__ __forceinline__ void load_shared_floats(float (&to)[N], SharedAddress at, int stride = 16) {
  static_assert(N % 4 == 0);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    const uint4 x = load_shared_16(at + i * stride);
    to[4 * i] = __uint_as_float(x.x), to[4 * i + 1] = __uint_as_float(x.y);
    to[4 * i + 2] = __uint_as_float(x.z), to[4 * i + 3] = __uint_as_float(x.w);
  }
}
__device__ __forceinline__ void store_shared_16(SharedAddress at, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ __forceinline__ void store_shared_8(SharedAddress at, uint2 x) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(x.x), "r"(x.y) : "memory");
}
__device__ __forceinline__ void store_shared_4(SharedAddress at, std::uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

}  // namespace oscar::kernels
