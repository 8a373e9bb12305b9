// The query operand of the `blocks` layout: in registers, or, where 12 warps on a multiprocessor hide more latency than
// 8 with all registers (two head tiles, D = 128), in the warp's scratch of shared memory.
#pragma once

#include <cstdint>

namespace oscar::kernels {

template <int D, int NT>
struct BlockQuery {
  static constexpr bool kInShared = D == 128 && NT == 2;
  static constexpr int kStartAt = D / 16 * 32 * 8 * NT;  // byte of the starts behind the pairs
  static constexpr int kSharedBytes = kInShared ? kStartAt + 4 * 4 * 8 * NT : 0;
  static constexpr int kTiles = kInShared ? 1 : NT, kSteps = kInShared ? 1 : D / 16;

  struct Pairs {
    std::uint32_t x[NT][2];
  };
  struct Start {
    float x[NT][2];
  };

  // Operand B of channel step `step`: FP16 pair r of head tile n. shared: kSharedBytes of this warp.
  __device__ __forceinline__ void set(std::uint8_t* shared, int n, int step, int r, std::uint32_t x, int lane) {
    if constexpr (kInShared) {
      reinterpret_cast<std::uint32_t*>(shared)[(step * 32 + lane) * 2 * NT + 2 * n + r] = x;
    } else {
      pair[n][step][r] = x;
    }
  }
  __device__ __forceinline__ Pairs pairs(const std::uint8_t* shared, int step, int lane) const {
    if constexpr (kInShared) {
      const uint4 x = reinterpret_cast<const uint4*>(shared)[step * 32 + lane];
      return {{{x.x, x.y}, {x.z, x.w}}};
    } else {
      Pairs out;
#pragma unroll
      for (int n = 0; n < NT; ++n) out.x[n][0] = pair[n][step][0], out.x[n][1] = pair[n][step][1];
      return out;
    }
  }

  // Where the accumulators of block b start, of the lane's two heads; lanes with equal lane % 4 have the same.
  __device__ __forceinline__ void set_start(std::uint8_t* shared, int n, int b, const float (&x)[2], int lane) {
    if constexpr (kInShared) {
      if (lane < 4) {
        reinterpret_cast<float2*>(shared + kStartAt)[(4 * b + lane) * NT + n] = make_float2(x[0], x[1]);
      }
    } else {
      start[n][b][0] = x[0], start[n][b][1] = x[1];
    }
  }
  __device__ __forceinline__ Start starts(const std::uint8_t* shared, int b, int lane) const {
    if constexpr (kInShared) {
      const float4 x = reinterpret_cast<const float4*>(shared + kStartAt)[4 * b + (lane & 3)];
      return {{{x.x, x.y}, {x.z, x.w}}};
    } else {
      Start out;
#pragma unroll
      for (int n = 0; n < NT; ++n) out.x[n][0] = start[n][b][0], out.x[n][1] = start[n][b][1];
      return out;
    }
  }

 private:
  std::uint32_t pair[kTiles][kSteps][2];
  float start[kTiles][4][2];
};

}  // namespace oscar::kernels
