// Rotation of cached rows in a fixed order of operations, so that the BF16 row, and with it the codes, depend on the
// input alone: not on how many tokens come in one call, the number of threads or the vector width.
#pragma once

#include <cstdint>

namespace oscar {

// out[r] = BF16((x[r] - mean) M), sums over the rows of M from the first to the last, each product and sum rounded.
// x: [n, d] FP32, x_stride apart; matrix: [d, d] row-major, null: identity; mean: [d] or null; out: [n, d] BF16 bits.
void rotate_rows(const float* x, std::int64_t n, std::int64_t x_stride, const float* mean, const float* matrix, int d,
                 std::uint16_t* out, std::int64_t out_stride);

}  // namespace oscar
