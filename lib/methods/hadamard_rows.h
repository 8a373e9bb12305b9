// The Hadamard transform of rows in place, with n log n additions. The bits of a row do not depend on other rows, so
// simulated prefill and paged cache code the same numbers.
#pragma once

#include <cstdint>

namespace oscar {

// rows: [count, stride] floats. The first `width` of each are transformed in blocks of `order`, a power of two that
// divides width: y = x H_order / sqrt(order), Sylvester order.
void hadamard_rows(float* rows, std::int64_t count, std::int64_t stride, std::int64_t width, std::int64_t order);

}  // namespace oscar
