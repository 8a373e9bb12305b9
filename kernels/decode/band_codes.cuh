// Pages of layout `blocks`: four blocks of D/4 channels, each with a width of 0, 1, 2 or 4 bits, which is the same for
// all heads of the layer. Each (token, block) has one scale byte e: x = sigma 2^(e/32) (c + o), o = (1 - 2^w)/2.
//
//   q.k = sum_b sigma_b 2^-i_b 2^(e_b/32) (q'_b.c_b + o_b Q_b),  q' = 2^i q, Q_b = sum of q'_b: the accumulator starts
// at o_b Q_b;
//   O_b = sigma_b (sum_t w_t c_t + o_b sum_t p_t 2^(e/32)),  w_t = p_t 2^(e/32) rounded to FP16; one MMA computes the
// second sums of all blocks: its row b is the scales of block b.
// Masks read codes as FP16 subnormals, as in uniform_codes.cuh. Rows of codes start at nibble or byte boundaries of
// each 16-bit half, so a code's exponent is its position inside the byte, e(j) = w j mod 8, the same for all tokens.
// The widths are launch constants. Blocks are processed by falling width (plane_walk.cuh), and their data is indexed by
// rank: scales, query, accumulators. Channels return to their order at the end.
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

// kPositions: logits also depend on the position of the key.
template <int D_, int NT_, bool kPositions_>
struct BandCodes {
  static constexpr int D = D_, NT = NT_;
  using Head = HeadFragment<NT>;
  // Tiles processed together: a full page, so that branches on the widths are taken once.
  static constexpr int kTiles = 4;
  static constexpr bool kLean = NT == 2;  // of softmax_weights()
  static constexpr bool kPositions = kPositions_;
  static constexpr int kBandSteps = D / 64;              // channel steps of 16 in a block
  static constexpr WeightRange kWeights{2048.0f, 4.0f};  // range of p; 2^(e/32) is between 2^-4 and 2^4
  // A warp's scales of a page, in words, for each half of 32 tokens. First FP32 key scales of each rank in the order of
  // key_word(), so that a lane reads its tokens at once. Then value scales, pairs of FP16 [rank][pair % 4][pair / 4 in
  // the order of value_word()], which mma_sums() reads directly. The strides between ranks spread the banks.
  static constexpr int kKeyStride = 36, kValueStride = 20, kValueAt = 4 * kKeyStride;
  static constexpr int kHalf = kValueAt + 4 * kValueStride;
  static constexpr int kColumnsAt = 4 * 2 * kHalf;  // bytes; after the scales: each lane's ScaleColumns, see below
  static constexpr bool kColumnsShared = NT == 2;   // if registers are too few
  static constexpr int kScratchBytes = kColumnsAt + (kColumnsShared ? 512 : 0);
  using Shared = BandQuery<D, NT>;
  using Query = typename Shared::Source;
  static constexpr int kItemBytes = sizeof(Shared);  // shared memory per thread block, in addition to its warps'

  SharedAddress query;                     // a BandQuery<D, NT>, at the lane's first vector
  std::uint32_t key_widths, value_widths;  // one byte per rank
  float score_scale;                       // softmax scale times log2 e
  // For the rank whose scales this lane computes (plane lane / 8): bytes in the scratch, and the factor of its key
  // scales.
  struct ScaleColumns {
    std::uint32_t key, value;
    float key_factor;
  };
  ScaleColumns columns;
  int key_scales, value_scales;  // bytes in the scratch at which this lane reads scales of rank 0

  // All threads of the block call it, after they have read the query of the previous item.
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
    // A lane's four tokens belong to one row half.
    columns.key_factor = shared->key_factor[rank] / (lane & 2 ? key_row_factor(D, a.key.width[rank]) : 1.0f);
    if constexpr (kColumnsShared)
      store_shared_16(scratch + kColumnsAt + 16 * lane,
                      make_uint4(columns.key, columns.value, __float_as_uint(columns.key_factor), 0));
  }

  // Computes the scales of a page once for the warp: a lane handles four tokens of plane lane / 8 in each half. Lanes
  // of planes that the layout lacks write columns that have no effect.
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
    __syncwarp();  // the previous page has been read
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

  // s: on entry, the part of the logits before the codes, before the softmax scale.
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
    // Sum b of the zero points: scales of rank b (b + 4 repeats them).
    const SharedAddress all_ranks = rank_0 + 4 * kValueStride * (lane >> 2 & 3);
    each_plane(value_widths, [&]<int W, int kRank>() {
      accumulate_band<W, kRank>(state, p, page + a.value.codes[kRank], rank_0 + 4 * kValueStride * kRank, all_ranks,
                                at);
    });
  }

  // Maps the accumulators' channel steps, ordered by rank, to the head's channel steps.
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
  // 2^(e/32) of four scale bytes. A byte placed below the exponent of 2^23 gives 2^23 plus the byte. One fused
  // multiply-add then removes everything but e/32, exactly.
  __device__ __forceinline__ static void scales_of(std::uint32_t bytes, float (&scale)[4]) {
    bytes ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = __uint_as_float(__byte_perm(bytes, 0x4B000000u, 0x7440 + i));
      scale[i] = exp2_approx(fmaf(x, 0x1p-5f, -(0x1p18f + 4.0f)));
    }
  }

  // Index of a token's key scale within its rank, for a half page. A lane's tokens Head::row(0) + ... are adjacent:
  // [token % 8][token / 8] or, for lanes with pairs of tokens, [token / 2 % 4][token / 8][token % 2].
  __device__ __forceinline__ static int key_word(int token) {
    return Head::kHeadRows ? token / 2 % 4 * 8 + token / 8 * 2 + token % 2 : token % 8 * 4 + token / 8;
  }

  // Index of pair / 4 in a vector, for the pairs of a half page. The pairs of a tile are the words of an operand; with
  // heads in columns, the pairs of two tiles alternate.
  __device__ __forceinline__ static int value_word(int quarter) {
    return Head::kHeadRows ? quarter : 2 * (quarter & 1) + quarter / 2;
  }

  // pinned() if there are enough registers.
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
      float scales[2 * Head::kRows];  // scales of two tiles
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

  // scale: as in score_band(), for pairs of tokens 2t + {0, 1}, + 8, + 16, + 24; all_ranks: for the rank whose sum the
  // lane holds. Zero-point products run with the products of rank 0, so that nothing waits for their chain of sums.
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
