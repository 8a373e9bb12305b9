#include <cuda_runtime_api.h>

#include "apps/gpu_facts.h"
#include "base/errors.h"

namespace oscar {

GpuFacts gpu_facts(int index) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) {
    throw EnvironmentError("GPU " + std::to_string(index) + " does not answer (" + cudaGetErrorString(error) +
                           "); pass --device cpu");
  }
  return {properties.name, properties.major, properties.minor};
}

}  // namespace oscar
