// Converts --device and --dtype to values. There is no silent fallback: the requested device is used or refused.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <thread>

#include "distributed/ranks.h"
#include "pipeline/common/common_options.h"

namespace oscar {

// EnvironmentError if CUDA is requested and this build or machine has none, the index does not exist, or the kernels
// are not built for the GPU. auto uses a usable GPU if there is one, and reports its choice on stderr. A rank uses the
// GPU with its local number; UsageError if --device names one.
at::Device choose_device(const CommonOptions& options, const Ranks* ranks = nullptr);

// Loads the GPU libraries and initializes the GPU on a thread, in parallel with other reading, because this takes half
// a second. Failures are reported by choose_device(). Null for the CPU.
std::jthread start_device(const CommonOptions& options, const Ranks* ranks = nullptr);

// auto: float32 on the CPU, for exact moments, and bfloat16 on a GPU. Reports its choice.
at::ScalarType choose_dtype(const CommonOptions& options, const at::Device& device);

// DecoderOptions::products of passes that may round: bfloat16 if --dtype auto chose float32 (`chosen`) on a CPU with
// instructions for such products (AVX512-BF16 or AMX), which take about a third of the time there. Without these
// instructions they would take longer.
std::optional<at::ScalarType> narrow_products(bool chosen, const at::Device& device);

const char* dtype_option_name(at::ScalarType dtype);  // "bfloat16", "float32"

// Describes a GPU and whether this build has kernels for it. The facts come from cuda/gpu_facts.cpp, or from
// no_cuda/gpu_facts.cpp without CUDA.
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
