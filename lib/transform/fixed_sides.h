// Transforms without data, as baselines use them.
#pragma once

#include <cstdint>

#include "transform/transform.h"

namespace oscar {

// [1, d, d] F32, with eigenvalues 1 as published.
SideTransform identity_side(std::int64_t head_dim);
SideTransform hadamard_side(std::int64_t head_dim);

}  // namespace oscar
