// OSCAR's code with one bit: two levels at the ends of the clipped range. NOVA-KV's one-bit form in the repository of
// TaSQ's authors (mscheong01/TaSQ) has it for values.
#pragma once

#include <cstdint>

namespace oscar {

// Replaces rows [n, d] by what a reader gets back: clip_row() of codec.h, then for each group of channels s = max -
// min, z = -min / s, both as 16-bit floats, q = trunc(clamp(x / s + z + 0.5, 0, 1)), xhat = (q - z) s. A group without
// a range reads its middle. NumericalError for NaN or infinity.
void two_level_rows(float* rows, std::int64_t n, std::int64_t d, std::int64_t group, float clip);

}  // namespace oscar
