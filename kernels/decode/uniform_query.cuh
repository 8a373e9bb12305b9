// The query of a (sequence, KV head) in the form for `uniform` pages, made once by a thread block. Each of its first
// warps makes a quarter of the channels, and all warps read them from shared memory. If every warp made its own, that
// would be a fifth of all instructions of a warp with one page.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/decode/launch_params.h"
#include "kernels/decode/query.cuh"
#include "kernels/decode/shared_memory.cuh"

namespace oscar::kernels {

template <int D, int NT>
struct UniformQuery {
  static constexpr int kMakers = 4, kSteps = D / 16 / kMakers;  // channel steps per maker
  using Head = HeadFragment<NT>;
  static constexpr int kWords = kSteps * Head::kWords, kVectors = (kWords + 3) / 4;

  // In shared memory; one vector per lane.
  uint4 pairs[kMakers][kVectors][32];  // FP16: q 2^exponent 4^-field, [channel step][word]
  float sums[kMakers][8 * NT];         // 2^-24 sum of a maker's scaled channels, per head
  std::uint32_t tops[kMakers];         // largest element of a maker's channels, as bits
  float unscale;                       // undoes both scalings

  // What warp b < 4 reads from global memory before it waits for anything.
  struct Source {
    QueryPairs<D / kMakers, NT> query;

    // q: [gqa_group, D] BF16 as pairs.
    __device__ __forceinline__ void load(const DecodeLaunch& a, const std::uint32_t* q, int, int warp, int lane) {
      if (warp < kMakers) query.load(q, D / 2, warp * (D / 8), a.gqa_group, lane);
    }
  };

  // All warps call it; the caller synchronizes before any warp reads.
  __device__ __forceinline__ void make(const Source& source, int warp, int lane) {
    if (warp >= kMakers) return;
    // One power of two brings the largest element of all heads and channels into FP16's range.
    const std::uint32_t largest = source.query.largest();
    if (lane == 0) tops[warp] = largest;
    asm volatile("bar.sync 1, %0;" ::"n"(32 * kMakers) : "memory");
    const float factor = query_factor(max(max(tops[0], tops[1]), max(tops[2], tops[3])));
    std::uint32_t words[4 * kVectors] = {};
    float total[NT] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int k = 0; k < Head::kWords; ++k) {
        const std::uint32_t x = source.query.pair[step][k];
        const float low = low_bf16(x) * factor, high = high_bf16(x) * factor;
        total[k % NT] += low + high;
        const int exponent = 2 * field_exponent(key_field(D, warp * kSteps + step, k / NT * 2).field);
        const float field = __uint_as_float(static_cast<std::uint32_t>(127 - exponent) << 23);
        words[step * Head::kWords + k] = pack_f16(low * field, high * field);
      }
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      float sum = total[n] * 0x1p-24f;
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if ((lane & 3) == 0) sums[warp][8 * n + (lane >> 2)] = sum;
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      pairs[warp][i][lane] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    if (warp == 0 && lane == 0) unscale = query_unscale(factor);
  }

  // Reads the operand of all channels, and its sum for the lane's two heads.
  __device__ __forceinline__ void read(std::uint32_t (&query)[D / 16][Head::kWords], float (&query_sum)[2],
                                       int lane) const {
    query_sum[0] = query_sum[1] = 0.0f;
#pragma unroll
    for (int b = 0; b < kMakers; ++b) {
      std::uint32_t words[4 * kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const uint4 x = load_shared_16(shared_address(&pairs[b][i][lane]));
        words[4 * i] = x.x, words[4 * i + 1] = x.y, words[4 * i + 2] = x.z, words[4 * i + 3] = x.w;
      }
#pragma unroll
      for (int k = 0; k < kWords; ++k) query[b * kSteps + k / Head::kWords][k % Head::kWords] = words[k];
#pragma unroll
      for (int i = 0; i < 2; ++i) query_sum[i] += sums[b][Head::head(i, lane)];
    }
  }
};

}  // namespace oscar::kernels
