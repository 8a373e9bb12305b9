// Loads that the compiler does not move after wait_for_previous() (launch_kernel.cuh), as it moves others. No kernel of
// a step may write what they read.
#pragma once

#include <cstdint>

namespace oscar::kernels {

__device__ __forceinline__ float load_early(const float* p) {
  float x;
  asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(x) : "l"(p));
  return x;
}
__device__ __forceinline__ int load_early(const std::int32_t* p) {
  int x;
  asm volatile("ld.volatile.global.s32 %0, [%1];" : "=r"(x) : "l"(p));
  return x;
}

}  // namespace oscar::kernels
