// The loops over cache rows that are compiled for several vector widths: rotation before storing; levels, dots and sums
// when reading. Each sum has a fixed order. So bits do not depend on the vector width, on the number of tokens per
// call, or on the number of threads.
#pragma once

#include <cstdint>

#include "kernels/common/page_layout.h"

namespace oscar {

// out[r] = BF16((x[r] - mean) M), summed over the rows of M from the first to the last, each product and sum rounded.
// x: [n, d] FP32, x_stride apart; matrix: [d, d] row-major, null: identity; mean: [d] or null; out: [n, d] BF16 bits.
void rotate_rows(const float* x, std::int64_t n, std::int64_t x_stride, const float* mean, const float* matrix, int d,
                 std::uint16_t* out, std::int64_t out_stride);

// Codes of one plane of a page as floats in natural order: levels[token * stride + channel] = code + offset. words: the
// plane, [bytes / 4]. Only for planes in fragment order; values also need an even number of words per lane.
inline bool expands_keys(const PlaneLayout& plane) { return plane.fragment_order(); }
inline bool expands_values(const PlaneLayout& plane) {
  return plane.fragment_order() && plane.channels * plane.width % 32 == 0;
}
void expand_keys(const PlaneLayout& plane, const std::uint32_t* words, int tokens, float offset, int stride,
                 float* levels);
void expand_values(const PlaneLayout& plane, const std::uint32_t* words, int tokens, float offset, int stride,
                   float* levels);
// For any plane, by a table: code i is at places[i] in units of its width, i = token * channels + channel.
void expand_by_table(const PlaneLayout& plane, const std::uint32_t* words, const std::uint16_t* places, int tokens,
                     float offset, int stride, float* levels);

// dots[t] = <q, rows[t]> over n channels with 16 partial sums; rows are d floats apart.
void row_dots(const float* q, const float* rows, int tokens, int n, int d, float* dots);

// output[n] += sum over t of weight[t] rows[t], token by token.
void add_rows(const float* weight, const float* rows, int tokens, int n, int d, float* output);

// BF16 bits as floats.
void widen_row(const std::uint16_t* bits, int n, float* values);

}  // namespace oscar
