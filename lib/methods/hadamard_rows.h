// The Hadamard transform of rows in place, n log n additions. Bits of a row do not depend on what else is transformed,
// so the simulated prefill and the paged cache code the same numbers.
#pragma once

#include <cstdint>

namespace oscar {

// rows: [count, stride] floats; the first `width` of each are transformed in blocks of `order`, a power of two that
// divides width: y = x H_order / sqrt(order), Sylvester order.
void hadamard_rows(float* rows, std::int64_t count, std::int64_t stride, std::int64_t width, std::int64_t order);

}  // namespace oscar
