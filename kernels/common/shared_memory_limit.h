// The limit of a kernel's shared memory at launch.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <mutex>

namespace oscar::kernels {

// Bytes that a block may have on every device of compute capability 8.0 or later. Kernels of a fixed size assert that
// they need no more.
inline constexpr std::size_t kLeastBlockMemory = 99 * 1024;

// Allows `kernel` to be launched with `bytes` of dynamic shared memory on the current device. The limit belongs to the
// kernel, not to the launch, and threads launch one kernel with different sizes at the same time (oscar-verify checks
// pages beside its passes). So it is only ever raised. If one thread lowered it between another thread's call and
// launch, that launch would fail.
template <auto kernel>
cudaError_t allow_shared_memory(int bytes) {
  constexpr int kDevices = 64;
  static std::atomic<int> allowed[kDevices];
  static std::mutex mutex;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  if (device >= kDevices) return cudaErrorInvalidDevice;
  if (allowed[device] >= bytes) return cudaSuccess;
  const std::scoped_lock lock(mutex);
  if (allowed[device] >= bytes) return cudaSuccess;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) allowed[device] = bytes;
  return error;
}

}  // namespace oscar::kernels
