// A lane's words of the codes of one block in a `blocks` page, and their expansion to FP16 operands by masks.
#pragma once

#include <cstdint>

#include "kernels/decode/shared_memory.cuh"

namespace oscar::kernels {

// 32-bit words of one lane that hold the codes of 32 tokens (tiles T and T + 1, T even) of a block of width W.
// R: bits that 8 tokens (keys) or 16 tokens (values) take in a 16-bit half of a lane's words.
template <int D, int W>
struct BlockWords {
  static constexpr int R = D / 32 * W;
  std::uint32_t w[R >= 8 ? R / 4 : 2];

  __device__ __forceinline__ static void load_vector(std::uint32_t* to, SharedAddress from) {
    if constexpr (R == 32) {
      const uint4 x = load_shared_16(from);
      to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    } else if constexpr (R == 16) {
      const uint2 x = load_shared_8(from);
      to[0] = x.x, to[1] = x.y;
    } else {
      to[0] = load_shared_4(from);
    }
  }

  __device__ __forceinline__ void load_keys(SharedAddress plane, int tile, int lane) {
    if constexpr (R >= 8) {
      constexpr int V = R / 8;
#pragma unroll
      for (int m = 0; m < 2; ++m) load_vector(w + m * V, plane + (tile + m) * (128 * V) + lane * (4 * V));
    } else if constexpr (R == 4) {
      load_vector(w, plane + tile * 64 + lane * 4);
    } else {
      load_vector(w, plane + lane * 4);
      w[0] >>= 4 * tile;
    }
  }
  // Channel pair j of row half x of tile m: two FP16 subnormals c 2^e(j) 2^-24.
  __device__ __forceinline__ std::uint32_t key(int m, int x, int j) const {
    const int bit = R >= 8 ? x * R + W * j : (2 * m + x) * R + W * j;
    return expand(R >= 8 ? m * (R / 8) + bit / 16 : 0, bit % 16, j);
  }

  __device__ __forceinline__ void load_values(SharedAddress plane, int tile, int lane) {
    if constexpr (R >= 16) {
      constexpr int V = R / 8;
#pragma unroll
      for (int m = 0; m < 2; ++m) load_vector(w + m * V, plane + (tile + m) * (128 * V) + lane * (4 * V));
    } else if constexpr (R == 8) {
#pragma unroll
      for (int b = 0; b < 2; ++b) load_vector(w + b, plane + (tile + b) * 128 + lane * 4);
    } else if constexpr (R == 4) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        load_vector(w + b, plane + b * 128 + lane * 4);
        w[b] >>= 4 * tile;
      }
    } else {
      load_vector(w, plane + lane * 4);
      w[0] >>= 2 * tile;
      w[1] = w[0] >> 8;
    }
  }
  // Row j of token half b of tile m.
  __device__ __forceinline__ std::uint32_t value(int m, int b, int j) const {
    if constexpr (R >= 16) return expand(m * (R / 8) + 2 * (W * j / 16) + b, W * j % 16, j);
    return expand(b, m * R + W * j, j);
  }

 private:
  __device__ __forceinline__ std::uint32_t expand(int word, int bit, int j) const {
    const int e = W * j % 8;
    const std::uint32_t mask = (0x00010001u * ((1u << W) - 1u)) << e;
    return (bit > e ? w[word] >> (bit - e) : w[word]) & mask;
  }
};

}  // namespace oscar::kernels
