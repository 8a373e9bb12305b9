// A GPU loads a kernel at its first launch, and libraries of matrix products start slowly. For the moments and the
// metrics of pairs outside the windows that is a third of a second; loading the weights takes several times as long.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "checkpoint/model_config.h"
#include "collect/far_pairs.h"

namespace oscar {

// Computes moments and metrics of a short sequence of ones, and discards them.
void warm_up_moments(const ModelConfig& config, const FarPairs& pairs, at::ScalarType dtype, at::Device device);

}  // namespace oscar
