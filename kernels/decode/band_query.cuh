// The query of a (sequence, KV head) as `blocks` pages need it: made once by a thread block, a warp for each of the
// four bands of channels, and read by all its warps from shared memory. Keys and values each in the order of their
// ranks (launch_params.h).
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/decode/band_words.cuh"
#include "kernels/decode/launch_params.h"
#include "kernels/decode/query.cuh"

namespace oscar::kernels {

template <int D, int NT>
struct BandQuery {
  static constexpr int kSteps = D / 64;  // channel steps of 16 in a band
  using Head = HeadFragment<NT>;
  static constexpr int kWords = kSteps * Head::kWords;  // of a lane and band: FP16 pairs, the heads' operand
  static constexpr int kVectors = (kWords + 3) / 4;

  // In shared memory; a vector for each lane.
  uint4 pairs[4][kVectors][32];  // q 2^i 2^-e, [channel step][word]
  float4 starts[4][NT][32];      // what a tile's registers start from
  float key_factor[4];           // of a scale: undoes the scaling of the query
  float value_sigma[4];

  // What warp b < 4 reads of global memory for band b, before anything waits.
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

  // Called by all warps; the caller synchronizes before anybody reads. i brings the largest query of the band into
  // FP16's range; the deviation's power of two is part of it, its fraction goes to the scales.
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
        // The sum of what the MMA multiplies: the rounding then belongs to (c + o), not to c and o apart.
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
      // A band without spread: its codes count for nothing, and window values can still be divided by it.
      value_sigma[warp] = a.value.width[warp] == 0 ? 1.0f : fmaxf(source.value_sigma, 0x1p-60f);
    }
  }
};

}  // namespace oscar::kernels
