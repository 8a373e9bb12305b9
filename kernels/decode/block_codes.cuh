// Pages of layout `blocks`: four blocks of D/4 channels with their own width of 0, 1, 2 or 4 bits, the same for all
// heads of the layer, and one scale byte e for each (token, block): x = sigma 2^(e/32) (c + o), o = (1 - 2^w)/2.
//
//   q.k = sum_b f_b 2^(e_b/32) (q'_b.c_b + o_b Q_b),  sigma = 2^i f, q' = 2^i q, Q_b = sum of q'_b: the accumulator
// starts at o_b Q_b;
//   O_b = sigma_b (sum_t w_t c_t + o_b sum_t w_t),  w_t = p_t 2^(e/32) rounded to FP16; the second sum is one MMA whose
// row b is ones.
// Codes are read as FP16 subnormals by masks, as in uniform_codes.cuh. With rows of codes at nibble or byte boundaries
// of each 16-bit half, a code's exponent is its place inside the byte, e(j) = w j mod 8, the same for all tokens.
// The widths are launch constants: one uniform branch for each block and side in 32 tokens.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/decode/block_query.cuh"
#include "kernels/decode/block_words.cuh"
#include "kernels/decode/launch_params.h"
#include "kernels/decode/query.cuh"
#include "kernels/decode/warp_state.cuh"

namespace oscar::kernels {

template <int D_, int NT_>
struct BlockCodes {
  static constexpr int D = D_, NT = NT_;
  static constexpr int kTiles = 4;            // a whole page at a time: the branches on the widths are paid once
  static constexpr int kBlockSteps = D / 64;  // channel steps of 16 in a block
  static constexpr WeightRange kWeights{2048.0f, 4.0f};  // of p; 2^(e/32) lies between 2^-4 and 2^4
  // A warp's scales of a page, in words, for each half of 32 tokens: keys FP32 [block][token % 8][token / 8], so that a
  // lane reads its four tokens at once, then values, pairs of FP16 [block][pair % 4][pair / 4]; after both halves sigma
  // of the values' blocks. The strides between blocks spread the banks.
  static constexpr int kKeyStride = 36, kValueStride = 20, kValueAt = 4 * kKeyStride;
  static constexpr int kHalf = kValueAt + 4 * kValueStride, kSigmaAt = 2 * kHalf;
  static constexpr int kQueryAt = 4 * (kSigmaAt + 4);  // bytes
  static constexpr int kScratchBytes = kQueryAt + BlockQuery<D, NT>::kSharedBytes;

  BlockQuery<D, NT> query;  // FP16: 2^i q 2^exponent 2^-e; starts: 2^-24 o_b Q_b
  float score_scale;        // undoes both scalings, times softmax scale and log2 e
  // Of the block whose scales this lane makes, that of plane lane / 8: sigma over its power of two, words of the
  // scratch.
  float key_fraction;
  int key_column, value_column;

  __device__ __forceinline__ static float power_of_two(int e) {
    return __uint_as_float(static_cast<std::uint32_t>(127 + e) << 23);
  }

  __device__ __forceinline__ void prepare(const DecodeLaunch& a, const QueryPairs<D, NT>& q, int kv_head, float scale,
                                          std::uint8_t* scratch, int lane) {
    key_column = a.key.block[lane >> 3] * kKeyStride + (lane & 1) * 16 + (lane & 7) / 2;
    value_column = kValueAt + a.value.block[lane >> 3] * kValueStride + (lane & 1) * 8 + (lane & 7) / 2;
    __syncwarp();  // the item before has read its deviations
    if (lane < 4) {
      // A block without spread: its codes count for nothing, and window values can still be divided by it.
      reinterpret_cast<float*>(scratch)[kSigmaAt + lane] =
          a.value.width[lane] == 0 ? 1.0f : fmaxf(__ldg(a.p.value_sigma + 4 * kv_head + lane), 0x1p-60f);
    }
    __syncwarp();
    // The power of two of a deviation goes to the query, which stays exact, the rest to the scales.
    const float* key_sigma = a.p.key_sigma + 4 * kv_head;
    key_fraction =
        __uint_as_float((__float_as_uint(__ldg(key_sigma + a.key.block[lane >> 3])) & 0x007fffffu) | 0x3f800000u);
    float sigma[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) sigma[b] = __uint_as_float(__float_as_uint(__ldg(key_sigma + b)) & 0x7f800000u);
    float top = 0.0f;
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int step = 0; step < D / 16; ++step)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const std::uint32_t x = q.pair[n][step][r];
          top = fmaxf(top, fmaxf(fabsf(low_bf16(x)), fabsf(high_bf16(x))) * sigma[step / kBlockSteps]);
        }
    const float factor = query_factor(__reduce_max_sync(0xffffffffu, __float_as_uint(top)));
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int width = a.key.width[b];
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < kBlockSteps; ++k)
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int step = b * kBlockSteps + k, e = width * (2 * k + r) & 7;
            const std::uint32_t x = q.pair[n][step][r];
            const float scaled = factor * sigma[b] * power_of_two(-e);
            const std::uint32_t pair = pack_f16(low_bf16(x) * scaled, high_bf16(x) * scaled);
            query.set(scratch + kQueryAt, n, step, r, pair, lane);
            // The sum of what the MMA multiplies: the rounding then belongs to (c + o), not to c and o apart.
            const float2 rounded = __half22float2(*reinterpret_cast<const __half2*>(&pair));
            total = fmaf(rounded.x + rounded.y, power_of_two(e), total);
          }
        float sums[2];
        head_sums(total * (0x1p-24f * (0.5f - 0.5f * static_cast<float>(1 << width))), lane, sums);
        query.set_start(scratch + kQueryAt, n, b, sums, lane);
      }
    score_scale = scale * (0x1p24f / factor);
    __syncwarp();
  }

  // Scales of a page, once for the warp: a lane takes four tokens of plane lane / 8 in each half. Lanes of planes that
  // the layout does not have write columns that nobody reads.
  __device__ __forceinline__ void begin_page(const DecodeLaunch& a, const std::uint8_t* page, std::uint8_t* scratch,
                                             int lane) const {
    __syncwarp();
    const int at = (lane >> 3) * kPageTokens + (lane & 7) * 4;
    const std::uint8_t *keys = page + a.key.params + at, *values = page + a.value.params + at;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t* words = reinterpret_cast<std::uint32_t*>(scratch) + half * kHalf;
      float key[4], value[4];
      scales_of(*reinterpret_cast<const std::uint32_t*>(keys + 32 * half), key);
      scales_of(*reinterpret_cast<const std::uint32_t*>(values + 32 * half), value);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[key_column + 4 * i] = __float_as_uint(key_fraction * key[i]);
      words[value_column] = pack_f16(value[0], value[1]);
      words[value_column + 4] = pack_f16(value[2], value[3]);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void score(const DecodeLaunch& a, float (&s)[kTiles][NT][4], TokenScales<kTiles>& scales,
                                        const std::uint8_t* page, int, const std::uint8_t* scratch, int lane) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      scales.key[m][0] = scales.key[m][1] = score_scale;
      scales.value[m][0] = scales.value[m][1] = 1.0f;
#pragma unroll
      for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) s[m][n][c] = 0.0f;
    }
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int width = a.key.width[b];
      if (width == 2) {
        score_block<2>(s, b, page + a.key.plane[b], scratch, lane);
      } else if (width == 1) {
        score_block<1>(s, b, page + a.key.plane[b], scratch, lane);
      } else if (width == 4) {
        score_block<4>(s, b, page + a.key.plane[b], scratch, lane);
      }
    }
  }

  // weights: probabilities as operand B.
  __device__ __forceinline__ void accumulate(const DecodeLaunch& a, WarpState<D, NT>& state,
                                             const std::uint32_t (&p)[kTiles][NT][2], const std::uint8_t* page, int,
                                             const std::uint8_t* scratch, int lane) const {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int width = a.value.width[b];
      if (width == 2) {
        accumulate_block<2>(state, p, b, page + a.value.plane[b], scratch, lane);
      } else if (width == 1) {
        accumulate_block<1>(state, p, b, page + a.value.plane[b], scratch, lane);
      } else if (width == 4) {
        accumulate_block<4>(state, p, b, page + a.value.plane[b], scratch, lane);
      }
    }
  }

  __device__ __forceinline__ int exponent(const DecodeLaunch& a, int step, int upper) const {
    return a.value.width[step / kBlockSteps] * (2 * (step % kBlockSteps) + upper) & 7;
  }
  __device__ __forceinline__ static float value_sigma(const std::uint8_t* scratch, int b) {
    return reinterpret_cast<const float*>(scratch)[kSigmaAt + b];
  }
  __device__ __forceinline__ float inverse_unit(const DecodeLaunch& a, const std::uint8_t* scratch, int step,
                                                int upper) const {
    return __fdividef(power_of_two(exponent(a, step, upper) - 24), value_sigma(scratch, step / kBlockSteps));
  }

  __device__ __forceinline__ void finish(const DecodeLaunch& a, WarpState<D, NT>& state, const std::uint8_t* scratch,
                                         int lane) const {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int b = 0; b < 4; ++b)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float offset = 0.5f - 0.5f * static_cast<float>(1 << a.value.width[b]);
          const float sum = offset * __shfl_sync(0xffffffffu, state.zeros[n][h], 4 * b + (lane & 3));
#pragma unroll
          for (int k = 0; k < kBlockSteps; ++k)
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
              const int step = b * kBlockSteps + k;
              float& o = state.o[n][step][2 * upper + h];
              o = value_sigma(scratch, b) * fmaf(o, power_of_two(24 - exponent(a, step, upper)), sum);
            }
        }
  }

 private:
  // 2^(e/32) of four scale bytes. A byte put under the exponent of 2^23 is that plus the byte, and one fused
  // multiply-add takes all but e/32 away, exactly.
  __device__ __forceinline__ static void scales_of(std::uint32_t bytes, float (&scale)[4]) {
    bytes ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = __uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7440 + i));
      scale[i] = exp2_approx(fmaf(x, 0x1p-5f, -(0x1p18f + 4.0f)));
    }
  }

  template <int W>
  __device__ __forceinline__ void score_block(float (&s)[kTiles][NT][4], int b, const std::uint8_t* plane,
                                              const std::uint8_t* scratch, int lane) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      BlockWords<D, W> words;
      words.load_keys(plane, 2 * half, lane);
      const float4 four =
          *reinterpret_cast<const float4*>(scratch + 4 * (half * kHalf + b * kKeyStride) + 16 * (lane >> 2));
      const float scales[4] = {four.x, four.y, four.z, four.w};
      const auto start = query.starts(scratch + kQueryAt, b, lane);
      float acc[2][NT][4];
#pragma unroll
      for (int k = 0; k < kBlockSteps; ++k) {
        const auto q = query.pairs(scratch + kQueryAt, b * kBlockSteps + k, lane);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const std::uint32_t codes[4] = {words.key(m, 0, 2 * k), words.key(m, 1, 2 * k), words.key(m, 0, 2 * k + 1),
                                          words.key(m, 1, 2 * k + 1)};
#pragma unroll
          for (int n = 0; n < NT; ++n) {
            if (k == 0) {
              const float from[4] = {start.x[n][0], start.x[n][1], start.x[n][0], start.x[n][1]};
              mma_f16(acc[m][n], codes, q.x[n][0], q.x[n][1], from);
            } else {
              mma_f16(acc[m][n], codes, q.x[n][0], q.x[n][1]);
            }
          }
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c)
            s[2 * half + m][n][c] = fmaf(acc[m][n][c], scales[2 * m + (c >> 1)], s[2 * half + m][n][c]);
    }
  }

  template <int W>
  __device__ __forceinline__ void accumulate_block(WarpState<D, NT>& state, const std::uint32_t (&p)[kTiles][NT][2],
                                                   int b, const std::uint8_t* plane, const std::uint8_t* scratch,
                                                   int lane) const {
    const std::uint32_t one = lane >> 2 == b ? 0x3C003C00u : 0u;  // row b of FP16 ones
    const std::uint32_t ones[4] = {one, 0u, one, 0u};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      BlockWords<D, W> words;
      words.load_values(plane, 2 * half, lane);
      const uint4 four =
          *reinterpret_cast<const uint4*>(scratch + 4 * (half * kHalf + kValueAt + b * kValueStride) + 16 * (lane & 3));
      const std::uint32_t scales[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        std::uint32_t weight[NT][2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int n = 0; n < NT; ++n) weight[n][r] = multiply_f16(p[2 * half + m][n][r], scales[2 * m + r]);
#pragma unroll
        for (int k = 0; k < kBlockSteps; ++k) {
          const std::uint32_t codes[4] = {words.value(m, 0, 2 * k), words.value(m, 0, 2 * k + 1),
                                          words.value(m, 1, 2 * k), words.value(m, 1, 2 * k + 1)};
#pragma unroll
          for (int n = 0; n < NT; ++n) mma_f16(state.o[n][b * kBlockSteps + k], codes, weight[n][0], weight[n][1]);
        }
#pragma unroll
        for (int n = 0; n < NT; ++n) mma_f16(state.zeros[n], ones, weight[n][0], weight[n][1]);
      }
    }
  }
};

}  // namespace oscar::kernels
