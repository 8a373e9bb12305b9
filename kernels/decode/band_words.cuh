// A lane's words of the codes of one block in a `blocks` page, and their expansion to FP16 operands by masks.
#pragma once

#include <cstdint>

#include "kernels/decode/shared_memory.cuh"

namespace oscar::kernels {

__device__ __forceinline__ float power_of_two(int e) {
  return __uint_as_float(static_cast<std::uint32_t>(127 + e) << 23);
}

// Keys: the factor by which codes of row half 1 (tokens g + 8) come out larger than codes of half 0. If both halves and
// all their fields are in one byte, half 1 is masked in place, without a shift.
__device__ __forceinline__ float key_row_factor(int head_dim, int width) {
  const int bits = head_dim / 32 * width;
  return bits < 8 ? power_of_two(bits) : 1.0f;
}

// A lane at a tile of a page. word = lane + 32 tile is a separate value, so that an address of codes takes one
// instruction.
struct LaneTile {
  int lane, tile, word;

  __device__ __forceinline__ LaneTile(int lane, int tile) : lane(lane), tile(tile), word(lane + 32 * tile) {
    keep(word);
  }
};

// 32-bit words of one lane with the codes of 32 tokens (tiles T = at.tile + up and T + 1, T even) of a block of width
// W. R: bits that 8 tokens (keys) or 16 tokens (values) take in a 16-bit half of a lane's words.
template <int D, int W>
struct BandWords {
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

  // Tiles of R / 8 words, keys or values.
  __device__ __forceinline__ void load_tiles(SharedAddress plane, const LaneTile& at, int up) {
    constexpr int V = R / 8;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      if constexpr (R == 64) {  // two vectors of four words, each of all lanes
        const SharedAddress tile = plane + at.word * 16 + at.tile * 512 + (up + m) * 1024;
        BandWords<D / 2, W>::load_vector(w + m * V, tile), BandWords<D / 2, W>::load_vector(w + m * V + 4, tile + 512);
      } else {
        load_vector(w + m * V, plane + at.word * (4 * V) + (up + m) * (128 * V));
      }
    }
  }
  __device__ __forceinline__ void load_keys(SharedAddress plane, const LaneTile& at, int up) {
    if constexpr (R >= 8) {
      load_tiles(plane, at, up);
    } else if constexpr (R == 4) {
      load_vector(w, plane + at.word * 2 + at.lane * 2 + up * 64);
    } else {
      load_vector(w, plane + at.lane * 4);
      w[0] >>= 4 * (at.tile + up);
    }
  }
  // Channel pair j of row half x of tile m: two FP16 subnormals c 2^e(j) 2^-24, times the row factor if x is 1.
  __device__ __forceinline__ std::uint32_t key(int m, int x, int j) const {
    if constexpr (R >= 8) {
      const int bit = x * R + W * j;
      return expand(m * (R / 8) + bit / 16, bit % 16, W * j % 8);
    }
    return expand(0, (2 * m + x) * R + W * j, x * R + W * j);
  }

  __device__ __forceinline__ void load_values(SharedAddress plane, const LaneTile& at, int up) {
    if constexpr (R >= 16) {
      load_tiles(plane, at, up);
    } else if constexpr (R == 8) {
#pragma unroll
      for (int b = 0; b < 2; ++b) load_vector(w + b, plane + at.word * 4 + (up + b) * 128);
    } else if constexpr (R == 4) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        load_vector(w + b, plane + b * 128 + at.lane * 4);
        w[b] >>= 4 * (at.tile + up);
      }
    } else {
      load_vector(w, plane + at.lane * 4);
      w[0] >>= 2 * (at.tile + up);
      w[1] = w[0] >> 8;
    }
  }
  // Row j of token half b of tile m.
  __device__ __forceinline__ std::uint32_t value(int m, int b, int j) const {
    if constexpr (R >= 16) return expand(m * (R / 8) + 2 * (W * j / 16) + b, W * j % 16, W * j % 8);
    return expand(b, m * R + W * j, W * j % 8);
  }

 private:
  // The field at `bit` of both halves of a word, as c 2^e 2^-24.
  __device__ __forceinline__ std::uint32_t expand(int word, int bit, int e) const {
    const std::uint32_t mask = (0x00010001u * ((1u << W) - 1u)) << e;
    return (bit > e ? w[word] >> (bit - e) : w[word]) & mask;
  }
};

}  // namespace oscar::kernels
