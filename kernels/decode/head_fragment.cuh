// Layout of a KV head's query heads in the tensor-core tiles of a warp. Lane = 4 g + t. Up to 8 heads (NT = 1) are the
// columns of m16n8k16; its rows are 16 tokens (scores) or channels (outputs), and codes are operand A. 9 to 16 heads
// (NT = 2) are its rows; codes are operand B of two tiles of 8 tokens or channels. The registers of codes are the same.
// Compared with two tiles of columns, a lane has two heads instead of four, and weights need no transposes.
#pragma once

#include <cstdint>

#include "kernels/decode/mma.cuh"

namespace oscar::kernels {

template <int NT>
struct HeadFragment {
  static constexpr bool kHeadRows = NT == 2;
  // A lane's registers of a tile of 16 tokens or channels ("rows") and all heads: [half][i][sub], row 8 half + g (heads
  // in columns) or 8 half + 2t + sub; two heads, i.
  static constexpr int kSub = NT, kSize = 4 * kSub, kRows = 2 * kSub;
  static constexpr int kWords = 2 * NT;  // operand words of heads: [r][n], head 8 n + g, elements 8 r + 2t + {0, 1}
  // Lanes with the same heads differ only in these bits.
  static constexpr int kFirstLaneBit = kHeadRows ? 1 : 4, kEndLaneBit = kHeadRows ? 4 : 32;

  __device__ static constexpr int half_of(int k) { return k / (2 * kSub); }
  __device__ static constexpr int head_of(int k) { return k / kSub % 2; }  // i of register k
  // Index among the lane's kRows rows.
  __device__ static constexpr int row_of(int k) { return half_of(k) * kSub + k % kSub; }
  __device__ static constexpr int index(int half, int i, int sub) { return (2 * half + i) * kSub + sub; }
  __device__ __forceinline__ static int row(int r, int lane) {  // the lane's r-th row: 0 to 15
    return 8 * (r / kSub) + (kHeadRows ? 2 * (lane & 3) + r % kSub : lane >> 2);
  }
  __device__ __forceinline__ static int head(int i, int lane) {
    return kHeadRows ? (lane >> 2) + 8 * i : 2 * (lane & 3) + i;
  }
  __device__ __forceinline__ static bool first_of_head(int lane) { return kHeadRows ? (lane & 3) == 0 : lane < 4; }

  template <class F>
  __device__ __forceinline__ static float over_head(float x, F&& join) {
#pragma unroll
    for (int bit = kFirstLaneBit; bit < kEndLaneBit; bit *= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, bit));
    return x;
  }
  // Sum of a lane's registers of head i over M tiles.
  template <int M>
  __device__ __forceinline__ static float lane_sum(const float (&x)[M][kSize], int i) {
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int sub = 0; sub < kSub; ++sub) {
        const float two = x[m][index(0, i, sub)] + x[m][index(1, i, sub)];
        sum = m == 0 && sub == 0 ? two : sum + two;
      }
    return sum;
  }
  // x[n]: each lane's part for head 8 n + g. Returns sums over the four lanes of a head, for the lane's two heads.
  __device__ __forceinline__ static void head_sums(const float (&x)[NT], int lane, float (&sum)[2]) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      float y = x[n];
      y += __shfl_xor_sync(0xffffffffu, y, 1);
      y += __shfl_xor_sync(0xffffffffu, y, 2);
      if constexpr (kHeadRows) {
        sum[n] = y;
      } else {
        sum[0] = __shfl_sync(0xffffffffu, y, 8 * (lane & 3));
        sum[1] = __shfl_sync(0xffffffffu, y, 8 * (lane & 3) + 4);
      }
    }
  }

  // c (+)= codes x heads. codes: [16 rows, 16] in the registers of operand A.
  __device__ __forceinline__ static void mma(float (&c)[kSize], const std::uint32_t (&codes)[4],
                                             const std::uint32_t (&heads)[kWords]) {
    if constexpr (kHeadRows) {
      mma_f16(c, heads, codes[0], codes[2]);
      mma_f16(c + 4, heads, codes[1], codes[3]);
    } else {
      mma_f16(c, codes, heads[0], heads[1]);
    }
  }
  // d = start + codes x heads. start: kSize registers; a lane's rows of one half must have equal values for a head.
  __device__ __forceinline__ static void mma(float (&d)[kSize], const std::uint32_t (&codes)[4],
                                             const std::uint32_t (&heads)[kWords], const float (&start)[kSize]) {
    if constexpr (kHeadRows) {
      mma_f16(d, heads, codes[0], codes[2], start);
      mma_f16(d + 4, heads, codes[1], codes[3], start + 4);
    } else {
      mma_f16(d, codes, heads[0], heads[1], start);
    }
  }
  __device__ __forceinline__ static void mma_bf16(float (&c)[kSize], const uint4& rows,
                                                  const std::uint32_t (&heads)[kWords]) {
    if constexpr (kHeadRows) {
      const uint4 a = make_uint4(heads[0], heads[1], heads[2], heads[3]);
      kernels::mma_bf16(c, a, rows.x, rows.z);
      kernels::mma_bf16(c + 4, a, rows.y, rows.w);
    } else {
      kernels::mma_bf16(c, rows, heads[0], heads[1]);
    }
  }
  // Sums over tokens, weighted by up to 8 numbers per token. numbers: of two tiles, number b in the lanes with g = b:
  // tokens 2t + {0, 1} and 8 later, of tile 0 and of tile 1. With heads in columns, the numbers of the two tiles
  // alternate. Both then serve as operand A without copies, with two ignored words.
  __device__ __forceinline__ static void mma_sums(float (&c)[4], const std::uint32_t (&numbers)[4], int tile,
                                                  const std::uint32_t (&heads)[kWords]) {
    if constexpr (kHeadRows) {
      mma_f16(c, heads, numbers[2 * tile], numbers[2 * tile + 1]);
    } else if (tile == 0) {
      mma_f16(c, numbers, heads[0], heads[1]);
    } else {
      const std::uint32_t upper[4] = {numbers[1], any_content(), numbers[3], any_content()};
      mma_f16(c, upper, heads[0], heads[1]);
    }
  }
  // The sum for number b < 8 and head i. All lanes must call it.
  __device__ __forceinline__ static float sum_of(const float (&c)[4], int b, int i, int lane) {
    if constexpr (kHeadRows) return __shfl_sync(0xffffffffu, c[2 * i + b % 2], (lane & ~3) + b / 2);
    return __shfl_sync(0xffffffffu, c[i], 4 * b + (lane & 3));
  }
  __device__ __forceinline__ static void scale_sums(float (&c)[4], int i, float factor) {
    if constexpr (kHeadRows) {
      c[2 * i] *= factor, c[2 * i + 1] *= factor;
    } else {
      c[i] *= factor;
    }
  }

  // Words of FP16 (or BF16) pairs of registers 2 k and 2 k + 1; operand() turns them into the heads' operand, with
  // tokens as its elements. With heads in columns, pairs of two heads are transposed; with heads in rows, pairs of two
  // tokens stay unchanged.
  __device__ __forceinline__ static std::uint32_t operand(std::uint32_t pair) {
    return kHeadRows ? pair : transpose_8x8(pair);
  }
};

}  // namespace oscar::kernels
