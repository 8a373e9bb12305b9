// What launches have in common: grids, errors, dynamic shared memory, and the choice of a head size.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/shared_memory_limit.h"

namespace oscar::kernels {

inline dim3 grid_of(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

// Number of blocks with `each` items that cover `items`.
constexpr std::int64_t blocks_of(std::int64_t items, std::int64_t each) { return (items + each - 1) / each; }

// Launches `kernel`, which has no dynamic shared memory.
template <auto kernel, class... Arguments>
cudaError_t launch_kernel(const dim3& grid, int threads, cudaStream_t stream, const Arguments&... arguments) {
  kernel<<<grid, static_cast<unsigned>(threads), 0, stream>>>(arguments...);
  return cudaGetLastError();
}

// The same with `bytes` of dynamic shared memory.
template <auto kernel, class... Arguments>
cudaError_t launch_with_memory(int bytes, const dim3& grid, int threads, cudaStream_t stream,
                               const Arguments&... arguments) {
  if (const cudaError_t error = allow_shared_memory<kernel>(bytes); error != cudaSuccess) return error;
  kernel<<<grid, static_cast<unsigned>(threads), static_cast<std::size_t>(bytes), stream>>>(arguments...);
  return cudaGetLastError();
}

// The same for a kernel whose dynamic shared memory is one `Shared`, on every supported device.
template <auto kernel, class Shared, class... Arguments>
cudaError_t launch_with(const dim3& grid, int threads, cudaStream_t stream, const Arguments&... arguments) {
  static_assert(sizeof(Shared) <= kLeastBlockMemory);
  return launch_with_memory<kernel>(static_cast<int>(sizeof(Shared)), grid, threads, stream, arguments...);
}

// The kernel may start while the previous kernel in the stream still runs (from Hopper on): wait_for_previous().
inline cudaLaunchAttribute early_start() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// As launch_with_memory(), but the caller has allowed the memory. early: with an early start.
template <auto kernel, class... Arguments>
cudaError_t launch_perhaps_early(bool early, int bytes, const dim3& grid, int threads, cudaStream_t stream,
                                 const Arguments&... arguments) {
  cudaLaunchAttribute attribute = early_start();
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// As launch_with_memory(), with an early start where the device has it; the caller has allowed the memory.
template <auto kernel, class... Arguments>
cudaError_t launch_early_with_memory(int bytes, const dim3& grid, int threads, cudaStream_t stream,
                                     const Arguments&... arguments) {
  int device = 0, major = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  return launch_perhaps_early<kernel>(major >= 9, bytes, grid, threads, stream, arguments...);
}

// The same without dynamic shared memory.
template <auto kernel, class... Arguments>
cudaError_t launch_early(const dim3& grid, int threads, cudaStream_t stream, const Arguments&... arguments) {
  return launch_early_with_memory<kernel>(0, grid, threads, stream, arguments...);
}

#ifdef __CUDACC__
// The next kernel of the stream may start, if it was launched so, as soon as all blocks of this one have called this.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the previous kernel has ended and its writes are seen. Nothing that it writes may be read before.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

// Calls launch.operator()<D>() with the head size as a constant; cudaErrorInvalidValue if it is not in kBuilt.
template <int... kBuilt, class Launch>
cudaError_t for_head_dim(int head_dim, const Launch& launch) {
  cudaError_t result = cudaErrorInvalidValue;
  static_cast<void>(((head_dim == kBuilt && (result = launch.template operator()<kBuilt>(), true)) || ...));
  return result;
}

// For the head sizes that the fast kernels have.
template <class Launch>
cudaError_t for_fast_head_dim(int head_dim, const Launch& launch) {
  return for_head_dim<64, 128, 256, 512>(head_dim, launch);
}

}  // namespace oscar::kernels
