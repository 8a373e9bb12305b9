// The query of a (sequence, KV head) in the form for `blocks` pages. A thread block makes it once, one warp per block
// of channels, and all its warps read it from shared memory. Keys and values are each in the order of their ranks
// (launch_params.h).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/decode/band_words.cuh"
#include "kernels/decode/launch_params.h"
#include "kernels/decode/query.cuh"

namespace oscar::kernels {

template <int D, int NT>
struct BandQuery {
  static constexpr int kSteps = D / 64;  // channel steps of 16 in a block
  using Head = HeadFragment<NT>;
  static constexpr int kWords = kSteps * Head::kWords;  // per lane and block: FP16 pairs, the heads' operand
  static constexpr int kVectors = (kWords + 3) / 4;

  // In shared memory; one vector per lane.
  uint4 pairs[4][kVectors][32];  // q 2^i 2^-e, [channel step][word]
  float4 starts[4][NT][32];      // initial values of a tile's registers
  float key_factor[4];           // factor of a scale: undoes the scaling of the query
  float value_sigma[4];

  // What warp b < 4 reads from global memory for block b before it waits for anything.
  struct Source {
    QueryPairs<D / 4, NT> query;
    float key_sigma, value_sigma;

    // q: [gqa_group, D] BF16 as pairs.
    __device__ __forceinline__ void load(const DecodeLaunch& a, const std::uint32_t* q, int kv_head, int warp,
                                         int lane) {
      if (warp >= 4) return;
      const int band = a.key.band[warp];
      key_sigma = __ldg(a.p.key_sigma + 4 * kv_head + band);
      value_sigma = __ldg(a.p.value_sigma + 4 * kv_head + a.value.band[warp]);
      query.load(q, D / 2, band * (D / 8), a.gqa_group, lane);
    }
  };

  // All warps call it; the caller synchronizes before any warp reads. i brings the largest query of the block into
  // FP16's range. It includes the power of two of the deviation, whose fraction goes into the scales.
  __device__ __forceinline__ void make(const DecodeLaunch& a, const Source& source, int warp, int lane) {
    if (warp >= 4) return;
    const float factor = source.query.factor();
    const int width = a.key.width[warp];
    std::uint32_t words[4 * kVectors] = {};
    float total[NT] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int k = 0; k < Head::kWords; ++k) {
        const int e = width * (2 * step + k / NT) & 7;
        const std::uint32_t x = source.query.pair[step][k];
        const float scaled = factor * power_of_two(-e);
        const std::uint32_t pair = pack_f16(low_bf16(x) * scaled, high_bf16(x) * scaled);
        words[step * Head::kWords + k] = pair;
        // The sum of the rounded MMA operands, so that the rounding error multiplies (c + o), not c and o separately.
        const float2 rounded = __half22float2(*reinterpret_cast<const __half2*>(&pair));
        total[k % NT] = fmaf(rounded.x + rounded.y, power_of_two(e), total[k % NT]);
      }
#pragma unroll
    for (int n = 0; n < NT; ++n) total[n] *= 0x1p-24f * (0.5f - 0.5f * static_cast<float>(1 << width));
    float sums[2];
    Head::head_sums(total, lane, sums);
    const float up = key_row_factor(D, width);
    float start[Head::kSize];
#pragma unroll
    for (int k = 0; k < Head::kSize; ++k) start[k] = (Head::half_of(k) == 0 ? 1.0f : up) * sums[Head::head_of(k)];
#pragma unroll
    for (int i = 0; i < NT; ++i)
      starts[warp][i][lane] = make_float4(start[4 * i], start[4 * i + 1], start[4 * i + 2], start[4 * i + 3]);
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      pairs[warp][i][lane] = make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
    if (lane == 0) {
      key_factor[warp] = source.key_sigma * (0x1p24f / factor);
      // A block without spread: its codes have no effect, and window values can still be divided by the sigma.
      value_sigma[warp] = a.value.width[warp] == 0 ? 1.0f : fmaxf(source.value_sigma, 0x1p-60f);
    }
  }
};

}  // namespace oscar::kernels
