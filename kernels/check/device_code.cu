#include "kernels/check/device_code.h"

namespace oscar::kernels {
namespace {

__global__ void probe_kernel(int* one) { *one = 1; }

}  // namespace

DeviceCode device_code() {
  DeviceCode found{cudaSuccess, 0, CUDART_VERSION};
  cudaFuncAttributes attributes;
  found.error = cudaFuncGetAttributes(&attributes, probe_kernel);
  cudaGetLastError();  // a later launch must not report this error
  cudaDriverGetVersion(&found.driver);
  return found;
}

}  // namespace oscar::kernels
