// The change of basis of up to kTokens rows of one KV head by tensor cores: BF16 operands, FP32 sums. A matrix consists
// of two BF16 terms, high and low, and rows may, too. The product then has the accuracy of FP32 operands to 2^-16.
#pragma once

#include <cuda_bf16.h>
#include <mma.h>

#include "kernels/common/page_layout.h"

namespace oscar::kernels {

template <int D, int kThreads_ = 256>
struct TileProduct {
  static constexpr int kThreads = kThreads_, kWarps = kThreads / 32;
  static constexpr int kTokens = D > 256 ? kPageTokens / 2 : kPageTokens;  // as many as fit a block's memory
  static constexpr int kRow = D + 8;     // BF16 elements from row to row of x: no bank conflicts
  static constexpr int kSumRow = D + 4;  // floats from row to row of the product: no bank conflicts
  static constexpr int kColumns = D / 16;
  static constexpr int kHalves = kColumns < kWarps ? kWarps / kColumns : 1;  // warps that share a column of tiles
  static constexpr int kRowTiles = kTokens / 16 / kHalves;
  static constexpr int kItems = kColumns * kHalves / kWarps;

  // sum [kTokens][kSumRow] = (high + low) [kTokens][kRow] times matrix [2][D][D], for its rows [begin, end). low: null
  // if rows are BF16. sum may overlap high and low. All threads call it after a barrier; it ends with one.
  __device__ static void multiply(const __nv_bfloat16* high, const __nv_bfloat16* low, const __nv_bfloat16* matrix,
                                  int begin, int end, float* sum) {
    using namespace nvcuda;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int first_row_tile = warp / kColumns % kHalves * kRowTiles;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> total[kItems][kRowTiles];
    const auto used = [&](int r) { return 16 * (first_row_tile + r + 1) > begin && 16 * (first_row_tile + r) < end; };
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int column = warp % kColumns + kWarps * i;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) wmma::fill_fragment(total[i][r], 0.0f);
#pragma unroll 2
      for (int k = 0; k < D / 16; ++k) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> most, rest;
        wmma::load_matrix_sync(most, matrix + 16 * k * D + 16 * column, D);
        wmma::load_matrix_sync(rest, matrix + D * D + 16 * k * D + 16 * column, D);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          if (!used(r)) continue;
          const int at = 16 * (first_row_tile + r) * kRow + 16 * k;
          wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> x;
          wmma::load_matrix_sync(x, high + at, kRow);
          wmma::mma_sync(total[i][r], x, most, total[i][r]);
          wmma::mma_sync(total[i][r], x, rest, total[i][r]);
          if (low == nullptr) continue;
          wmma::load_matrix_sync(x, low + at, kRow);
          wmma::mma_sync(total[i][r], x, most, total[i][r]);
        }
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        if (!used(r)) continue;
        float* to = sum + 16 * (first_row_tile + r) * kSumRow + 16 * (warp % kColumns + kWarps * i);
        wmma::store_matrix_sync(to, total[i][r], kSumRow, wmma::mem_row_major);
      }
    }
    __syncthreads();
  }
};
static_assert(TileProduct<64>::kItems == 1 && TileProduct<64>::kRowTiles == 2 && TileProduct<128>::kItems == 1 &&
              TileProduct<256>::kItems == 2 && TileProduct<256>::kRowTiles == 4 && TileProduct<512>::kItems == 4 &&
              TileProduct<512>::kRowTiles == 2);

}  // namespace oscar::kernels
