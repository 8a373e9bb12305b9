// The shared memory that a kernel may be launched with.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>

namespace oscar::kernels {

// Lets `kernel` be launched with `bytes` of dynamic shared memory on the current device. The limit belongs to the
// kernel and not to the launch, and threads launch one kernel with different sizes at a time (a run of oscar-verify
// checks pages beside its passes). So it is only ever raised: lowered by one thread between the call and the launch of
// another, that launch would fail.
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
