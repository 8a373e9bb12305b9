// Sixteen rows of one KV head times a matrix by tensor cores. Rows and matrix are FP32, each the sum of two BF16 terms,
// high and low; without the product of the low ones the result has the accuracy of FP32 operands to 2^-16. A block has
// 2 D threads, and a warp computes 16 channels, whose part of the matrix it holds in registers.
#pragma once

#include <cstdint>

#include "kernels/bf16_products.cuh"
#include "kernels/common/load_early.cuh"
#include "kernels/decode/mma.cuh"

namespace oscar::kernels {

template <int D>
struct RowTile {
  static constexpr int kRows = 16, kThreads = 2 * D, kSteps = D / 16;

  __align__(16) std::uint16_t high[kRows][D + 8], low[kRows][D + 8];  // padded: no bank conflicts

  __device__ __forceinline__ static void split(std::uint32_t& high, std::uint32_t& low, float x, float y) {
    high = pack_bf16(x, y);
    low = pack_bf16(x - low_bf16(high), y - high_bf16(high));
  }

  // A thread's part of a matrix [D, D].
  struct Matrix {
    std::uint32_t high[2][kSteps][2], low[2][kSteps][2];

    __device__ __forceinline__ explicit Matrix(const float* matrix) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      const float* column = matrix + 16 * warp + lane / 4;
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float* at = column + (16 * s + lane % 4 * 2 + 8 * h) * D + 8 * n;
            const float one = load_early(at), next = load_early(at + D);
            split(high[n][s][h], low[n][s][h], one, next);
          }
    }
  };

  // Where a thread's sums belong: row(h) and channel(n), with the next one, of sum[n][2 h] and sum[n][2 h + 1].
  __device__ __forceinline__ static int row(int h) { return static_cast<int>(threadIdx.x) % 32 / 4 + 8 * h; }
  __device__ __forceinline__ static int channel(int n) {
    return static_cast<int>(threadIdx.x) / 32 * 16 + 8 * n + static_cast<int>(threadIdx.x) % 4 * 2;
  }

  __device__ __forceinline__ void put(int row, int channel, const float4& x) {
    uint2 most, rest;
    split(most.x, rest.x, x.x, x.y), split(most.y, rest.y, x.z, x.w);
    *reinterpret_cast<uint2*>(&high[row][channel]) = most;
    *reinterpret_cast<uint2*>(&low[row][channel]) = rest;
  }

  // After a barrier behind put().
  __device__ __forceinline__ void multiply(const Matrix& matrix, float (&sum)[2][4]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      std::uint32_t most[4], rest[4];
      bf16::load(most, &high[lane % 16][16 * s + lane / 16 * 8]);
      bf16::load(rest, &low[lane % 16][16 * s + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        bf16::multiply(sum[n], rest, matrix.high[n][s][0], matrix.high[n][s][1]);
        bf16::multiply(sum[n], most, matrix.low[n][s][0], matrix.low[n][s][1]);
        bf16::multiply(sum[n], most, matrix.high[n][s][0], matrix.high[n][s][1]);
      }
    }
  }
};

}  // namespace oscar::kernels
