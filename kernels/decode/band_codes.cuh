// Pages of layout `blocks`: four bands of D/4 channels with their own width of 0, 1, 2 or 4 bits, the same for all
// heads of the layer, and one scale byte e for each (token, band): x = sigma 2^(e/32) (c + o), o = (1 - 2^w)/2.
//
//   q.k = sum_b sigma_b 2^-i_b 2^(e_b/32) (q'_b.c_b + o_b Q_b),  q' = 2^i q, Q_b = sum of q'_b: the accumulator starts
// at o_b Q_b;
//   O_b = sigma_b (sum_t w_t c_t + o_b sum_t p_t 2^(e/32)),  w_t = p_t 2^(e/32) rounded to FP16; the second sums of all
// bands are one MMA whose row b is the scales of band b.
// Codes are read as FP16 subnormals by masks, as in uniform_codes.cuh. With rows of codes at nibble or byte boundaries
// of each 16-bit half, a code's exponent is its place inside the byte, e(j) = w j mod 8, the same for all tokens.
// The widths are launch constants; bands are worked on by falling width (plane_walk.cuh), and whatever belongs to one
// is indexed by its rank: scales, query, accumulators. Channels come back into their order at the end.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/decode/band_query.cuh"
#include "kernels/decode/band_words.cuh"
#include "kernels/decode/launch_params.h"
#include "kernels/decode/plane_walk.cuh"
#include "kernels/decode/query.cuh"
#include "kernels/decode/warp_state.cuh"

namespace oscar::kernels {

// kPositions: logits depend on the position of the key, too.
template <int D_, int NT_, bool kPositions_>
struct BandCodes {
  static constexpr int D = D_, NT = NT_;
  using Head = HeadFragment<NT>;
  // Tiles worked on together: a whole page, so that the branches on the widths are paid once.
  static constexpr int kTiles = 4;
  static constexpr bool kLean = NT == 2;  // of softmax_weights()
  static constexpr bool kPositions = kPositions_;
  static constexpr int kBandSteps = D / 64;              // channel steps of 16 in a band
  static constexpr WeightRange kWeights{2048.0f, 4.0f};  // of p; 2^(e/32) lies between 2^-4 and 2^4
  // A warp's scales of a page, in words, for each half of 32 tokens: keys FP32, of a rank in the order of key_word(),
  // so that a lane reads its tokens at once, then values, pairs of FP16 [rank][pair % 4][pair / 4 in the order of
  // value_word(): the numbers of mma_sums() as they are read]. The strides between ranks spread the banks.
  static constexpr int kKeyStride = 36, kValueStride = 20, kValueAt = 4 * kKeyStride;
  static constexpr int kHalf = kValueAt + 4 * kValueStride;
  static constexpr int kColumnsAt = 4 * 2 * kHalf;  // bytes; behind the scales: each lane's ScaleColumns, see below
  static constexpr bool kColumnsShared = NT == 2;   // where registers lack
  static constexpr int kScratchBytes = kColumnsAt + (kColumnsShared ? 512 : 0);
  using Shared = BandQuery<D, NT>;
  using Query = typename Shared::Source;
  static constexpr int kItemBytes = sizeof(Shared);  // shared memory of a thread block beside its warps'

  SharedAddress query;                     // a BandQuery<D, NT>, the lane's first vector
  std::uint32_t key_widths, value_widths;  // a byte for each rank
  float score_scale;                       // softmax scale and log2 e
  // Of the rank whose scales this lane makes, that of plane lane / 8: bytes of the scratch, and what its key scales are
  // multiplied by.
  struct ScaleColumns {
    std::uint32_t key, value;
    float key_factor;
  };
  ScaleColumns columns;
  int key_scales, value_scales;  // bytes of the scratch from which this lane reads scales of rank 0

  // Called by all threads of the block, which has read the query of the item before.
  __device__ __forceinline__ void prepare(const DecodeLaunch& a, const Query& source, float scale, std::uint8_t* item,
                                          SharedAddress scratch, int warp, int lane) {
    Shared* shared = reinterpret_cast<Shared*>(item);
    shared->make(a, source, warp, lane);
    const int rank = a.key.ranks[lane >> 3];
    columns.key = 4 * (rank * kKeyStride + key_word(4 * (lane & 7)));
    columns.value =
        4 * (kValueAt + a.value.ranks[lane >> 3] * kValueStride + (lane & 1) * 8 + value_word((lane & 7) / 2));
    key_widths = pinned(a.key.widths(), lane);
    value_widths = pinned(a.value.widths(), lane);
    score_scale = scale;
    query = pinned(shared_address(item) + 16 * lane, lane);
    keep(columns.key), keep(columns.value);
    key_scales = held(4 * key_word(Head::row(0, lane)), lane);
    value_scales = held(4 * kValueAt + 16 * (lane & 3), lane);
    __syncthreads();
    // A lane's four tokens are of one row half.
    columns.key_factor = shared->key_factor[rank] / (lane & 2 ? key_row_factor(D, a.key.width[rank]) : 1.0f);
    if constexpr (kColumnsShared)
      store_shared_16(scratch + kColumnsAt + 16 * lane,
                      make_uint4(columns.key, columns.value, __float_as_uint(columns.key_factor), 0));
  }

  // Scales of a page, once for the warp: a lane takes four tokens of plane lane / 8 in each half. Lanes of planes that
  // the layout does not have write columns that count for nothing.
  __device__ __forceinline__ void begin_page(const DecodeLaunch& a, SharedAddress page, SharedAddress scratch,
                                             int lane) const {
    ScaleColumns to = columns;
    if constexpr (kColumnsShared) {
      const uint4 x = load_shared_16(scratch + kColumnsAt + 16 * lane);
      to = {x.x, x.y, __uint_as_float(x.z)};
    }
    const SharedAddress from = page + (lane >> 3) * kPageTokens + (lane & 7) * 4;
    std::uint32_t bytes[2][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bytes[half][0] = load_shared_4(from + a.key.scales + 32 * half);
      bytes[half][1] = load_shared_4(from + a.value.scales + 32 * half);
    }
    float key[2][4], value[2][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scales_of(bytes[half][0], key[half]);
      scales_of(bytes[half][1], value[half]);
    }
    __syncwarp();  // the page before has been read
    const SharedAddress keys = scratch + to.key, values = scratch + to.value;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) key[half][i] *= to.key_factor;
      if constexpr (Head::kHeadRows) {
#pragma unroll
        for (int i = 0; i < 4; i += 2)
          store_shared_8(keys + 4 * (half * kHalf + key_word(i)),
                         make_uint2(__float_as_uint(key[half][i]), __float_as_uint(key[half][i + 1])));
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          store_shared_4(keys + 4 * (half * kHalf + key_word(i)), __float_as_uint(key[half][i]));
      }
      store_shared_4(values + 4 * half * kHalf, pack_f16(value[half][0], value[half][1]));
      store_shared_4(values + 4 * half * kHalf + 16, pack_f16(value[half][2], value[half][3]));
    }
    __syncwarp();
  }

  // s: what the logits have already, before the softmax scale.
  __device__ __forceinline__ void score(const DecodeLaunch& a, float (&s)[kTiles][Head::kSize],
                                        TokenScales<kTiles, NT>& scales, SharedAddress page, int tile,
                                        SharedAddress scratch, int lane) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int r = 0; r < Head::kRows; ++r) scales.key[m][r] = score_scale, scales.value[m][r] = 1.0f;
    }
    const LaneTile at(lane, tile);
    SharedAddress rank_0 = scratch + key_scales + 4 * kHalf * (tile / 2);
    keep(rank_0);
    each_plane(key_widths, [&]<int W, int kRank>() {
      score_band<W>(s, kRank, page + a.key.codes[kRank], rank_0 + 4 * kKeyStride * kRank, at);
    });
  }

  // p: probabilities as the heads' operand.
  __device__ __forceinline__ void accumulate(const DecodeLaunch& a, WarpState<D, NT>& state,
                                             const std::uint32_t (&p)[kTiles][Head::kWords], SharedAddress page,
                                             int tile, SharedAddress scratch, int lane) const {
    const LaneTile at(lane, tile);
    SharedAddress rank_0 = scratch + value_scales + 4 * kHalf * (tile / 2);
    keep(rank_0);
    // Sum b of the zero points: scales of rank b (b + 4: again).
    const SharedAddress all_ranks = rank_0 + 4 * kValueStride * (lane >> 2 & 3);
    each_plane(value_widths, [&]<int W, int kRank>() {
      accumulate_band<W, kRank>(state, p, page + a.value.codes[kRank], rank_0 + 4 * kValueStride * kRank, all_ranks,
                                at);
    });
  }

  // The accumulators' channel steps, by rank -> those of the head.
  __device__ __forceinline__ static int channel_step(const DecodeLaunch& a, int step) {
    return a.value.band[step / kBandSteps] * kBandSteps + step % kBandSteps;
  }
  __device__ __forceinline__ int exponent(const DecodeLaunch& a, int step, int upper) const {
    return a.value.width[step / kBandSteps] * (2 * (step % kBandSteps) + upper) & 7;
  }
  __device__ __forceinline__ float value_sigma(int rank, int lane) const {
    return __uint_as_float(load_shared_4(query - 16 * lane + offsetof(Shared, value_sigma) + 4 * rank));
  }
  __device__ __forceinline__ float inverse_unit(const DecodeLaunch& a, int step, int upper, int lane) const {
    return __fdividef(power_of_two(exponent(a, step, upper) - 24), value_sigma(step / kBandSteps, lane));
  }

  __device__ __forceinline__ void finish(const DecodeLaunch& a, WarpState<D, NT>& state, int lane) const {
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const float sigma = value_sigma(b, lane), offset = 0.5f - 0.5f * static_cast<float>(1 << a.value.width[b]);
      const float sums[2] = {offset * Head::sum_of(state.zeros, b, 0, lane),
                             offset * Head::sum_of(state.zeros, b, 1, lane)};
#pragma unroll
      for (int step = b * kBandSteps; step < (b + 1) * kBandSteps; ++step)
#pragma unroll
        for (int k = 0; k < Head::kSize; ++k) {
          float& o = state.o[step][k];
          o = sigma * fmaf(o, power_of_two(24 - exponent(a, step, Head::half_of(k))), sums[Head::head_of(k)]);
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

  // Where the key scale of a token of a half page lies among its rank's. A lane's tokens Head::row(0) + ... are next to
  // each other: [token % 8][token / 8] or, where it has pairs of tokens, [token / 2 % 4][token / 8][token % 2].
  __device__ __forceinline__ static int key_word(int token) {
    return Head::kHeadRows ? token / 2 % 4 * 8 + token / 8 * 2 + token % 2 : token % 8 * 4 + token / 8;
  }

  // Where pair / 4 of a half page's pairs lies in a vector: those of a tile are the words of an operand, in heads'
  // columns those of two tiles alternate.
  __device__ __forceinline__ static int value_word(int quarter) {
    return Head::kHeadRows ? quarter : 2 * (quarter & 1) + quarter / 2;
  }

  // pinned() where registers suffice.
  template <class T>
  __device__ __forceinline__ static T held(T x, int lane) {
    return NT == 1 ? pinned(x, lane) : x;
  }

  // scale: the lane's scales of the rank in the first half, in the order of its tokens.
  template <int W>
  __device__ __forceinline__ void score_band(float (&s)[kTiles][Head::kSize], int rank, SharedAddress plane,
                                             SharedAddress scale, const LaneTile& at) const {
    constexpr int kWords = Head::kWords;
    uint4 vectors[Shared::kVectors];
#pragma unroll
    for (int i = 0; i < Shared::kVectors; ++i)
      vectors[i] = load_shared_16(query + offsetof(Shared, pairs) + 512 * (rank * Shared::kVectors + i));
    std::uint32_t q[kBandSteps][kWords];
#pragma unroll
    for (int i = 0; i < kBandSteps * kWords; ++i) q[i / kWords][i % kWords] = (&vectors[i / 4].x)[i % 4];
    float start[Head::kSize];
    load_shared_floats(start, query + offsetof(Shared, starts) + 512 * rank * NT, 512);
    BandWords<D, W> words[kTiles / 2];
#pragma unroll
    for (int half = 0; half < kTiles / 2; ++half) words[half].load_keys(plane, at, 2 * half);
    float acc[kTiles][Head::kSize];
#pragma unroll
    for (int k = 0; k < kBandSteps; ++k)
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const BandWords<D, W>& w = words[m / 2];
        const std::uint32_t codes[4] = {w.key(m % 2, 0, 2 * k), w.key(m % 2, 1, 2 * k), w.key(m % 2, 0, 2 * k + 1),
                                        w.key(m % 2, 1, 2 * k + 1)};
        if (k == 0) {
          Head::mma(acc[m], codes, q[k], start);
        } else {
          Head::mma(acc[m], codes, q[k]);
        }
      }
#pragma unroll
    for (int half = 0; half < kTiles / 2; ++half) {
      float scales[2 * Head::kRows];  // of two tiles
      load_shared_floats(scales, scale + 4 * kHalf * half);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int k = 0; k < Head::kSize; ++k) {
          float& sum = s[2 * half + m][k];
          sum = fmaf(acc[2 * half + m][k], scales[Head::kRows * m + Head::row_of(k)], sum);
        }
    }
  }

  // scale: the same of pairs of tokens 2t + {0, 1}, + 8, + 16, + 24; all_ranks: of the rank whose sum the lane holds.
  // Products of the zero points come with those of rank 0: their chain of sums then waits for nobody.
  template <int W, int kRank>
  __device__ __forceinline__ static void accumulate_band(WarpState<D, NT>& state,
                                                         const std::uint32_t (&p)[kTiles][Head::kWords],
                                                         SharedAddress plane, SharedAddress scale,
                                                         SharedAddress all_ranks, const LaneTile& at) {
#pragma unroll
    for (int half = 0; half < kTiles / 2; ++half) {
      BandWords<D, W> words;
      words.load_values(plane, at, 2 * half);
      const uint4 four = load_shared_16(scale + 4 * kHalf * half);
      const std::uint32_t scales[4] = {four.x, four.y, four.z, four.w};
      uint4 all;
      if constexpr (kRank == 0) all = load_shared_16(all_ranks + 4 * kHalf * half);
      std::uint32_t weight[2][Head::kWords];
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int k = 0; k < Head::kWords; ++k)
          weight[m][k] = multiply_f16(p[2 * half + m][k], scales[value_word(2 * m + k / NT)]);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        if constexpr (kRank == 0) {
          const std::uint32_t numbers[4] = {all.x, all.y, all.z, all.w};
          Head::mma_sums(state.zeros, numbers, m, p[2 * half + m]);
        }
#pragma unroll
        for (int k = 0; k < kBandSteps; ++k) {
          const std::uint32_t codes[4] = {words.value(m, 0, 2 * k), words.value(m, 0, 2 * k + 1),
                                          words.value(m, 1, 2 * k), words.value(m, 1, 2 * k + 1)};
          Head::mma(state.o[kRank * kBandSteps + k], codes, weight[m]);
        }
      }
    }
  }
};

}  // namespace oscar::kernels
