// Tiles of 16 BF16 tokens of the sink and recent tiers.
#pragma once

#include <cstdint>

#include "kernels/decode/query.cuh"
#include "kernels/decode/shared_memory.cuh"
#include "kernels/decode/warp_state.cuh"

namespace oscar::kernels {

// q: the item's heads in global memory, [group, D] BF16 as pairs.
template <int D, int NT>
__device__ __forceinline__ void score_window(float (&s)[1][NT][4], const QueryPairs<D, NT>& q, SharedAddress keys,
                                             int lane) {
  float odd[NT][4];
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[0][n][c] = odd[n][c] = 0.0f;
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const uint4 a = load_shared_16(keys + (step * 32 + lane) * 16);
#pragma unroll
    for (int n = 0; n < NT; ++n) mma_bf16(step % 2 ? odd[n] : s[0][n], a, q.pair[n][step][0], q.pair[n][step][1]);
  }
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int c = 0; c < 4; ++c) s[0][n][c] += odd[n][c];
}

// Weights are split in two BF16 parts, so that the tile is as exact as its values, and the products are scaled to join
// the accumulator of the codes.
template <int D, int NT, class Codes>
__device__ __forceinline__ void accumulate_window(WarpState<D, NT>& state, const float (&p)[1][NT][4],
                                                  const DecodeLaunch& a, const Codes& codes, SharedAddress values,
                                                  int lane) {
  std::uint32_t high[NT][2], low[NT][2];
#pragma unroll
  for (int n = 0; n < NT; ++n)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float x = p[0][n][2 * r], y = p[0][n][2 * r + 1];
      const std::uint32_t top_part = pack_bf16(x, y);
      high[n][r] = transpose_8x8(top_part);
      low[n][r] = transpose_8x8(pack_bf16(x - low_bf16(top_part), y - high_bf16(top_part)));
    }
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const uint4 v = load_shared_16(values + (Codes::channel_step(a, step) * 32 + lane) * 16);
    const float unit[2] = {codes.inverse_unit(a, step, 0, lane), codes.inverse_unit(a, step, 1, lane)};
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      float o[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      mma_bf16(o, v, high[n][0], high[n][1]);
      mma_bf16(o, v, low[n][0], low[n][1]);
#pragma unroll
      for (int c = 0; c < 4; ++c) state.o[n][step][c] = fmaf(o[c], unit[c >> 1], state.o[n][step][c]);
    }
  }
}

}  // namespace oscar::kernels
