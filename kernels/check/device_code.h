// Whether the kernels of this build run on a device.
#pragma once

#include <cuda_runtime_api.h>

namespace oscar::kernels {

struct DeviceCode {
  cudaError_t error;           // cudaSuccess, or why the kernels do not run
  int driver, driver_for_ptx;  // CUDA version of the driver, and of the compiler that made the PTX: 13000
};

// Loads one small kernel on the current device. A device without machine code in the build has the PTX translated now.
DeviceCode device_code();

}  // namespace oscar::kernels
