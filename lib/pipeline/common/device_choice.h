// Converts --device and --dtype to values. There is no silent fallback: the requested device is used or refused.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
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

}  // namespace oscar
