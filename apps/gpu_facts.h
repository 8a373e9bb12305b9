// What a GPU is, and whether this build has kernels for it. The facts come from cuda/gpu_facts.cpp, or from
// no_cuda/gpu_facts.cpp where CUDA is off.
#pragma once

#include <string>

namespace oscar {

struct GpuFacts {
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int major = 0, minor = 0;  // compute capability
};

int gpu_count();  // as the CUDA runtime sees it; 0 without a driver, or with one that is too old

// Loads LibTorch's GPU part, which takes as long as all else at the start of a command and is needed on a GPU alone.
// To be called before LibTorch is asked for anything of CUDA. EnvironmentError when it cannot be loaded.
void load_gpu_library();

GpuFacts gpu_facts(int index);  // EnvironmentError when the driver does not answer

// Why kernels built for `architectures` (CMake's list: "80-real;90a-real") do not run on the GPU; empty when they do.
// Machine code runs on its own major capability from its minor one on; with a letter, on that capability alone; code
// that is not "-real" also comes as PTX, which every later GPU translates.
std::string gpu_unsupported(const GpuFacts& gpu, const std::string& architectures);

}  // namespace oscar
