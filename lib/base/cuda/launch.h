// Calls kernels on LibTorch's tensors and current stream.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/errors.h"

namespace oscar {

// EnvironmentError that names the kernel if a launch failed.
inline void check_launch(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw EnvironmentError(std::string("the GPU failed in ") + what + " (" + cudaGetErrorString(error) +
                         "); pass --device cpu");
}

// The stream on which LibTorch queues its own work.
inline cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

// Null for an undefined tensor.
template <class T>
const T* pointer(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<T>() : nullptr;
}

}  // namespace oscar
