// The tensor-core products of gram.cu: X^T X of the rows in shared memory, kept in the registers of a block's warps.
#pragma once

#include <cstdint>

#include "kernels/bf16_products.cuh"

namespace oscar::kernels::gram {

using namespace bf16;

constexpr int kThreads = 256, kChunk = 32;  // threads per block; rows copied at a time

// Rows of one chunk in shared memory; the padding keeps ldmatrix free of bank conflicts.
template <int D>
using Chunk = std::uint16_t[kChunk][D + 8];

// A warp's part of the D x D products of a block, in registers: 16 kTiles rows by 8 kColumns columns.
template <int D, bool kShifted>
struct Products {
  static constexpr int kTiles = D / 64, kColumns = D / 2 / 8;
  int lane, first_row, first_column;
  double sum[kTiles][kColumns][4];
  float part[kTiles][kColumns][4] = {};  // not yet in the sum: at most 128 rows

  __device__ __forceinline__ Products() {
    const int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32, first_row = (warp % 4) * 16 * kTiles, first_column = warp / 4 * (D / 2);
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.0;
  }

  __device__ __forceinline__ void flush() {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[m][n][i] += static_cast<double>(part[m][n][i]), part[m][n][i] = 0.0f;
  }

  // Operands of rows k to k + 15. Matrices of the first operand: (k, m), (k, m + 8), (k + 8, m), (k + 8, m + 8). Of the
  // second: (k, n), (k + 8, n), (k, n + 8), (k + 8, n + 8).
  __device__ __forceinline__ void first(std::uint32_t (&a)[4], const Chunk<D>& from, int k, int m) const {
    load_transposed(a, &from[k + lane % 8 + lane / 16 * 8][first_row + 16 * m + lane / 8 % 2 * 8]);
  }
  __device__ __forceinline__ void second(std::uint32_t (&b)[4], const Chunk<D>& from, int k, int n) const {
    load_transposed(b, &from[k + lane % 8 + lane / 8 % 2 * 8][first_column + 8 * n + lane / 16 * 8]);
  }

  // Adds the products of one chunk; low is read only with a shift.
  __device__ __forceinline__ void add(const Chunk<D>& rows, const Chunk<D>& low) {
#pragma unroll
    for (int k = 0; k < kChunk; k += 16) {
      std::uint32_t a[kTiles][4], a_low[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        first(a[m], rows, k, m);
        if constexpr (kShifted) first(a_low[m], low, k, m);
      }
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        std::uint32_t b[4], b_low[4];
        second(b, rows, k, n);
        if constexpr (kShifted) second(b_low, low, k, n);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply_pair(m, n, a[m], b);
          if constexpr (kShifted) {
            multiply_pair(m, n, a[m], b_low);
            multiply_pair(m, n, a_low[m], b);
            multiply_pair(m, n, a_low[m], b_low);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void multiply_pair(int m, int n, const std::uint32_t (&a)[4],
                                                const std::uint32_t (&b)[4]) {
    multiply(part[m][n], a, b[0], b[1]);
    multiply(part[m][n + 1], a, b[2], b[3]);
  }

  __device__ __forceinline__ void write(double* out) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = first_row + 16 * m + lane / 4 + i / 2 * 8;
          const int column = first_column + 8 * n + lane % 4 * 2 + i % 2;
          out[row * D + column] = sum[m][n][i];
        }
  }
};

}  // namespace oscar::kernels::gram
