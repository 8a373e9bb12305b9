// The inner loops of attention on the CPU. Each sum has a fixed order, so bits do not depend on the vector width.
#pragma once

#include <cstdint>

namespace oscar {

// dots[t] = <q, rows[t]> over n channels with 16 running sums; rows are d floats apart.
void row_dots(const float* q, const float* rows, int tokens, int n, int d, float* dots);

// output[n] += sum over t of weight[t] rows[t], token after token.
void add_rows(const float* weight, const float* rows, int tokens, int n, int d, float* output);

// BF16 bits as floats.
void widen_row(const std::uint16_t* bits, int n, float* values);

}  // namespace oscar
