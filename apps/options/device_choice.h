// --device and --dtype as values. No silent fallback: what was asked for is used or refused.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <thread>

#include "apps/options/common_options.h"
#include "distributed/ranks.h"

namespace oscar {

// EnvironmentError when CUDA is asked for and this build or machine has none, the index does not exist, or the GPU is
// one that the kernels are not built for. auto takes the GPU where there is a usable one and says on stderr what it
// chose. A rank takes the GPU of its number on the machine; UsageError where --device names one.
at::Device choose_device(const CommonOptions& options, const Ranks* ranks = nullptr);

// Loads what a GPU needs, and starts it, on a thread while other things are read: that takes half a second. What fails
// there fails in choose_device(), which says so. Null where the CPU computes.
std::jthread start_device(const CommonOptions& options, const Ranks* ranks = nullptr);

// auto: float32 on the CPU (exact moments, and as fast there), bfloat16 on a GPU. Says what it chose.
at::ScalarType choose_dtype(const CommonOptions& options, const at::Device& device);

const char* dtype_option_name(at::ScalarType dtype);  // "bfloat16", "float32"

}  // namespace oscar
