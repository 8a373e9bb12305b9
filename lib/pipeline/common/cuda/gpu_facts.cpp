#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "base/errors.h"
#include "build_info.h"
#include "pipeline/common/device_choice.h"

namespace oscar {

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void load_gpu_library() {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
  throw EnvironmentError("libtorch_cuda.so, LibTorch's GPU part, cannot be loaded (" + std::string(dlerror()) +
                         "); install torch " + kTorchSeries + " with CUDA 13, or pass --device cpu");
}

GpuFacts gpu_facts(int index) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) {
    throw EnvironmentError("GPU " + std::to_string(index) + " does not answer (" + cudaGetErrorString(error) +
                           "); pass --device cpu");
  }
  int driver = 0;
  cudaDriverGetVersion(&driver);
  return {properties.name, properties.major, properties.minor, driver};
}

}  // namespace oscar
