// RoPE of FP32 rows on the CPU in one pass, without LibTorch. Each product is rounded before the sum, so the result has
// the bits of separate tensor operations.
#pragma once

#include <cstdint>

namespace oscar {

// One token: x, out [heads, d]; cos, sin [pairs], 2 pairs <= d. Channel i of a head turns with i + pairs:
//   out_i = x_i cos_i - x_{i + pairs} sin_i,   out_{i + pairs} = x_{i + pairs} cos_i + x_i sin_i.
// The other channels are copied.
void turn_row(const float* x, std::int64_t heads, std::int64_t d, const float* cos, const float* sin,
              std::int64_t pairs, float* out);

}  // namespace oscar
