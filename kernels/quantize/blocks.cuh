// Encoder of one block of the layout `blocks` in a warp; reference: lib/codec/blocks.cpp.
#pragma once

#include "kernels/common/scale_grid.h"
#include "kernels/quantize/row_ops.cuh"

namespace oscar::kernels::blocks {

__constant__ const ScaleGrid kGrid = make_scale_grid();

// The grid's boundaries in memory that lanes read side by side; constant memory serves one address at a time.
__device__ const ScaleGrid kLaneGrid = make_scale_grid();

// All lanes of a warp with the same ratio: each compares with one boundary.
__device__ inline int scale_byte(float ratio) {
  if (!(ratio >= 0x1p-5f)) return -128;
  if (ratio >= 0x1p5f) return 127;
  const unsigned bits = __float_as_uint(ratio);
  const float mantissa = __uint_as_float((bits & 0x7fffffu) | 0x3f800000u);
  const unsigned above = __ballot_sync(row::kAll, mantissa >= kLaneGrid.boundary[threadIdx.x % 32]);
  return max(-128, min(127, 32 * (static_cast<int>(bits >> 23) - 127) + __popc(above)));
}

__device__ inline float scale_value(int e, float sigma) {
  const int steps = e + 128;
  return sigma * kGrid.value[steps % 32] * __uint_as_float(static_cast<unsigned>(steps / 32 - 4 + 127) << 23);
}

// x: n elements; odd = 2 c + 1 - 2^w of the codes c for one fraction.
template <int P>
__device__ inline void try_fraction(const float (&x)[P], int width, float fraction, float largest, int (&odd)[P]) {
  const int levels = 1 << width;
  const float inverse = 1.0f / ((2.0f * fraction * largest) / static_cast<float>(levels - 1));
  const float half = static_cast<float>(levels / 2), top = static_cast<float>(levels - 1);
#pragma unroll
  for (int j = 0; j < P; ++j) {
    const float c = width == 1 ? (x[j] >= 0.0f ? 1.0f : 0.0f) : row::clamp(x[j] * inverse + half, top);
    odd[j] = 2 * static_cast<int>(c) + 1 - levels;
  }
}

// Parts of the largest magnitude that are tried, for 2 and 4 bits; lanes read them side by side.
__device__ const float kFractions[2][8] = {
    {1.0f, 0.9214285714f, 0.8428571429f, 0.7642857143f, 0.6857142857f, 0.6071428571f, 0.5285714286f, 0.45f},
    {1.0f, 0.9428571429f, 0.8857142857f, 0.8285714286f, 0.7714285714f, 0.7142857143f, 0.6571428571f, 0.6f}};

// The best of eight fractions. Lanes 4 k to 4 k + 3 handle fraction k in the steps that are done once per warp.
template <int P>
__device__ inline void find_fraction(const float (&x)[P], int n, int width, float largest, float& best_dot,
                                     int& best_squares, float& best_fraction) {
  const int lane = static_cast<int>(threadIdx.x % 32), levels = 1 << width;
  const float half = static_cast<float>(levels / 2), top = static_cast<float>(levels - 1);
  const float fraction = kFractions[width == 4 ? 1 : 0][lane / 4];
  const float inverse = 1.0f / ((2.0f * fraction * largest) / top);
  float dots[8];
  int squares = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float step = __shfl_sync(row::kAll, inverse, 4 * k);
    float values[P], counted = 0.0f;  // integers of at most 225 P: exact
#pragma unroll
    for (int j = 0; j < P; ++j) {
      values[j] = 2.0f * row::level(x[j] * step + half, top) - top;
      if (lane + 32 * j < n) counted += values[j] * values[j];
    }
    dots[k] = row::part_of_dot(x, values, n);
    const int all = __reduce_add_sync(row::kAll, static_cast<int>(counted));
    squares = lane / 4 == k ? all : squares;
  }
  const float dot = row::fold_each(dots);
  const int best = row::first_largest((dot * dot) / static_cast<float>(squares));
  best_dot = __shfl_sync(row::kAll, dot, best), best_squares = __shfl_sync(row::kAll, squares, best);
  best_fraction = __shfl_sync(row::kAll, fraction, best);
}

// Returns the scale byte.
template <int P>
__device__ inline int encode_band(const float (&x)[P], int n, int width, float sigma, bool value_side, bool search,
                                  int (&codes)[P]) {
  const float largest = row::largest_magnitude(x, n);
  if (!(largest >= 0x1p-40f)) {
#pragma unroll
    for (int j = 0; j < P; ++j) codes[j] = 1 << (width - 1);
    return -128;
  }
  if (!(largest <= 0x1p40f)) {
#pragma unroll
    for (int j = 0; j < P; ++j) codes[j] = x[j] < 0.0f ? 0 : (1 << width) - 1;
    return 127;
  }
  float best_dot = 0.0f, best_fraction = 1.0f;
  int best_squares = 1, odd[P];
  if (search && width > 1) {
    find_fraction(x, n, width, largest, best_dot, best_squares, best_fraction);
  } else {
    try_fraction(x, width, 1.0f, largest, odd);
    float levels[P];
    best_squares = 0;
#pragma unroll
    for (int j = 0; j < P; ++j) {
      levels[j] = static_cast<float>(odd[j]);
      if (static_cast<int>(threadIdx.x % 32) + 32 * j < n) best_squares += odd[j] * odd[j];
    }
    best_squares = __reduce_add_sync(row::kAll, best_squares);
    best_dot = row::fixed_dot(x, levels, n);
  }
  try_fraction(x, width, best_fraction, largest, odd);
  const int shift = (1 << width) - 1;
#pragma unroll
  for (int j = 0; j < P; ++j) codes[j] = (odd[j] + shift) / 2;
  const float scale =
      value_side ? (2.0f * best_dot) / static_cast<float>(best_squares) : (2.0f * row::fixed_dot(x, x, n)) / best_dot;
  return scale_byte(scale / sigma);
}

}  // namespace oscar::kernels::blocks
