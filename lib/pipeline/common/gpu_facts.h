// Describes a GPU and whether this build has kernels for it. The facts come from cuda/gpu_facts.cpp, or from
// no_cuda/gpu_facts.cpp without CUDA.
#pragma once

#include <string>

namespace oscar {

struct GpuFacts {
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int major = 0, minor = 0;  // compute capability
  int driver = 0;            // newest CUDA that the driver knows: 13000
};

int gpu_count();  // from the CUDA runtime; 0 without a driver, or if the driver is too old

// Loads LibTorch's GPU part. This takes as long as the rest of a command's start and is needed only on a GPU. Call it
// before any CUDA use of LibTorch. EnvironmentError if it cannot be loaded.
void load_gpu_library();

GpuFacts gpu_facts(int index);  // EnvironmentError if the driver does not answer

// Why kernels built for `architectures` (CMake's list: "80-real;90a-real") do not run on the GPU; empty if they do.
// Machine code runs on its major capability from its minor one on; with a letter, only on that capability. Entries
// without "-real" also include PTX, which the driver of every later GPU can translate, if it is as new as the compiler,
// CUDA `compiler` ("13.0.88").
std::string gpu_unsupported(const GpuFacts& gpu, const std::string& architectures, const std::string& compiler);

}  // namespace oscar
