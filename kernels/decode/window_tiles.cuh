// Tiles of 16 BF16 tokens of the sink and recent windows.
#pragma once

#include <cstdint>

#include "kernels/decode/query.cuh"
#include "kernels/decode/shared_memory.cuh"
#include "kernels/decode/warp_state.cuh"

namespace oscar::kernels {

// Adds the scores of N channels. q: these channels of the item's heads; keys: of the tile, from these channels on.
template <int N, int NT>
__device__ __forceinline__ void score_window(float (&s)[1][4 * NT], const QueryPairs<N, NT>& q, SharedAddress keys,
                                             int lane) {
  using Head = HeadFragment<NT>;
  float odd[Head::kSize] = {};
#pragma unroll
  for (int step = 0; step < N / 16; ++step) {
    const uint4 a = load_shared_16(keys + (step * 32 + lane) * 16);
    Head::mma_bf16(step % 2 ? odd : s[0], a, q.pair[step]);
  }
#pragma unroll
  for (int k = 0; k < Head::kSize; ++k) s[0][k] += odd[k];
}

// Weights are split into two BF16 parts, so that the tile is as exact as its values. The products are scaled to match
// the accumulator of the codes.
template <int D, int NT, class Codes>
__device__ __forceinline__ void accumulate_window(WarpState<D, NT>& state, const float (&p)[1][4 * NT],
                                                  const DecodeLaunch& a, const Codes& codes, SharedAddress values,
                                                  int lane) {
  using Head = HeadFragment<NT>;
  std::uint32_t high[Head::kWords], low[Head::kWords];
#pragma unroll
  for (int k = 0; k < Head::kWords; ++k) {
    const float x = p[0][2 * k], y = p[0][2 * k + 1];
    const std::uint32_t top_part = pack_bf16(x, y);
    high[k] = Head::operand(top_part);
    low[k] = Head::operand(pack_bf16(x - low_bf16(top_part), y - high_bf16(top_part)));
  }
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const uint4 v = load_shared_16(values + (Codes::channel_step(a, step) * 32 + lane) * 16);
    const float unit[2] = {codes.inverse_unit(a, step, 0, lane), codes.inverse_unit(a, step, 1, lane)};
    float o[Head::kSize] = {};
    Head::mma_bf16(o, v, high);
    Head::mma_bf16(o, v, low);
#pragma unroll
    for (int k = 0; k < Head::kSize; ++k) state.o[step][k] = fmaf(o[k], unit[Head::half_of(k)], state.o[step][k]);
  }
}

}  // namespace oscar::kernels
