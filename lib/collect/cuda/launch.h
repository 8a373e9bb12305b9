// Launches kernels on ATen's current stream.
#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/errors.h"

namespace oscar {

inline cudaStream_t current_stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

inline void check_launch(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return;
  throw EnvironmentError(std::string("the GPU failed in ") + kernel + " (" + cudaGetErrorString(error) +
                         "); pass --device cpu");
}

}  // namespace oscar
