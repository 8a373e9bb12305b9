// A GPU loads a kernel when it is first launched, and libraries of products take a while to begin: a third of a second
// for all that the moments and the far pairs use, which the weights take several times to load.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "checkpoint/model_config.h"
#include "statistics/far_pairs.h"

namespace oscar {

// Takes moments and far pairs of a short sequence of ones, and throws them away.
void warm_up_moments(const ModelConfig& config, const FarPairs& pairs, at::ScalarType dtype, at::Device device);

}  // namespace oscar
