// The mean of keys before RoPE, from the sums of a statistics file.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "statistics/statistics.h"

namespace oscar {

// Mean of the keys of each head before RoPE, [Hkv, d] FP64. InputError if the statistics lack the sums.
at::Tensor pre_rope_key_mean(const Statistics& statistics, std::size_t layer);

}  // namespace oscar
