// A warp's band of the code pages of a part. A code is FP16 after one mask: field c at bit e of a half is the subnormal
// c 2^(e - 24). The query absorbs 2^-e, and the sums are divided by it at the end. The words of eight tokens hold pairs
// of channels, as logits need them; transposed as 8 x 8 matrices of halves, they hold pairs of tokens, as sums do.
#pragma once

#include "kernels/common/launch_kernel.cuh"
#include "kernels/latent/block_state.cuh"

namespace oscar::kernels::latent {

// Where field i of a half-word is after the shift that brings it into the significand of FP16.
template <int W>
struct Field {
  static constexpr int kInHalf = 16 / W;
  static constexpr int bit(int i) { return i % kInHalf * W; }
  static constexpr int shift(int i) { return bit(i) + W <= 10 ? 0 : (W == 4 ? 8 : 10); }
  static constexpr int exponent(int i) { return bit(i) - shift(i); }
};

// The words of 16 tokens (two tiles of eight), 2 W of them.
template <int W>
struct TokenWords {
  std::uint32_t w[2][W];

  __device__ __forceinline__ TokenWords(SharedAddress plane, int tile, int lane) {
    if constexpr (W == 4) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const uint4 x = load_shared_16(plane + (2 * tile + s) * 512 + lane * 16);
        w[s][0] = x.x, w[s][1] = x.y, w[s][2] = x.z, w[s][3] = x.w;
      }
    } else if constexpr (W == 2) {
      const uint4 x = load_shared_16(plane + tile * 512 + lane * 16);
      w[0][0] = x.x, w[0][1] = x.y, w[1][0] = x.z, w[1][1] = x.w;
    } else {
      const uint2 x = load_shared_8(plane + tile * 256 + lane * 8);
      w[0][0] = x.x, w[1][0] = x.y;
    }
  }
  __device__ __forceinline__ void transpose() {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < W; ++i) w[s][i] = transpose_8x8(w[s][i]);
    }
  }
  // Channel group c (eight channels) of token tile s, as an operand.
  __device__ __forceinline__ std::uint32_t operand(int s, int c) const {
    constexpr std::uint32_t kOnes = 0x00010001u * ((1u << W) - 1u);
    return (w[s][c / Field<W>::kInHalf] >> Field<W>::shift(c)) & (kOnes << Field<W>::exponent(c));
  }
};

// The slots of a warp: codes, parameters, RoPE part.
template <int W>
struct BandSlot {
  static constexpr int kPlane = kPageTokens / 8 * kBandChannels * W, kParams = W > 0 ? kPageTokens : 0;
  static constexpr int kBytes = kPlane + kParams + kRopeBandBytes;
};

// A band's queries, FP16, and what the sums of their products become. The band that refines the first has its queries.
template <int W>
struct BandQuery {
  std::uint32_t operand[kSteps][4];
  float factor[2], offset[2];  // logit = ratio (sum factor + offset)

  __device__ __forceinline__ BandQuery(const Launch& a, int sequence, int first_head, int band, int lane) {
    const float sigma = a.p.sigma[band];
    uint4 q[kSteps];
    float most[2] = {0.0f, 0.0f}, sum[2] = {0.0f, 0.0f};
    const int first_channel = a.p.refined && band == kBands - 1 ? 0 : band * kBandChannels;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      q[k] = query_operand(a.p.q_latent, a.p.q_latent_stride, sequence, first_head, a.p.heads, first_channel + 16 * k,
                           lane);
      const std::uint32_t x[4] = {q[k].x, q[k].y, q[k].z, q[k].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        most[i % 2] = fmaxf(most[i % 2], fmaxf(fabsf(low_bf16(x[i])), fabsf(high_bf16(x[i]))));
        sum[i % 2] += low_bf16(x[i]) + high_bf16(x[i]);
      }
    }
    float power[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int apart = 1; apart <= 2; apart *= 2) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], apart));
        sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], apart);
      }
      // The largest magnitude becomes one of [2^14, 2^15).
      const int exponent = static_cast<int>(__float_as_uint(most[r]) >> 23) - 127;
      const int up = max(-100, min(100, 14 - exponent));
      power[r] = __uint_as_float(static_cast<std::uint32_t>(127 + up) << 23);
      factor[r] = sigma * __uint_as_float(static_cast<std::uint32_t>(127 - up) << 23) * 0x1p24f;
      offset[r] = -0.5f * static_cast<float>((1 << W) - 1) * sum[r] * sigma;
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const std::uint32_t x[4] = {q[k].x, q[k].y, q[k].z, q[k].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int e = Field<W>::exponent(2 * k + i / 2);
        const float up = power[i % 2] * (1.0f / static_cast<float>(1 << e));
        operand[k][i] = pack_f16(low_bf16(x[i]) * up, high_bf16(x[i]) * up);
      }
    }
  }
};

template <>
struct BandQuery<0> {
  __device__ __forceinline__ BandQuery(const Launch&, int, int, int, int) {}
};

template <int W>
struct CodePages {
  const Launch& a;
  Shared& s;
  const CopyRing ring;
  const SharedAddress slots;
  const int band, lane, plane;

  __device__ __forceinline__ CodePages(const Launch& a, Shared& s, const CopyRing& ring, int band, int lane)
      : a(a),
        s(s),
        ring(ring),
        slots(shared_address(s.ring) + first_slot(a, band)),
        band(band),
        lane(lane),
        plane(plane_of(a, band)) {}

  // Planes of bands before this one.
  __device__ __forceinline__ static int plane_of(const Launch& a, int band) {
    int planes = 0;
    for (int b = 0; b < band; ++b) planes += a.p.widths[b] > 0 ? 1 : 0;
    return planes;
  }
  __device__ __forceinline__ static int first_slot(const Launch& a, int band) {
    int bytes = 0;
    for (int b = 0; b < band; ++b) {
      const int w = a.p.widths[b];
      bytes += kPageTokens / 8 * kBandChannels * w + (w > 0 ? kPageTokens : 0) + kRopeBandBytes;
    }
    return bytes * a.stages;
  }

  __device__ __forceinline__ void copy(const std::int32_t* table, int i, int stage) const {
    const std::uint8_t* page = a.p.pages + table[i] * a.p.page_stride;
    const SharedAddress to = slots + stage * BandSlot<W>::kBytes;
    const CopyPart rope{to + BandSlot<W>::kPlane + BandSlot<W>::kParams,
                        page + a.page.rope_offset() + band * kRopeBandBytes, kRopeBandBytes};
    if constexpr (W > 0) {
      ring.copy(lane, stage, {to, page + a.page.codes.plane[plane].offset, BandSlot<W>::kPlane}, rope,
                {to + BandSlot<W>::kPlane, page + a.page.codes.param_byte(0, plane), kPageTokens});
    } else {
      ring.copy(lane, stage, rope);
    }
  }

  // Logits of the page in a slot, from this band's channels.
  __device__ __forceinline__ void score(const BandQuery<W>& q, const uint4& q_pe, SharedAddress slot,
                                        float (&logits)[8][4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (W > 0) {
        const TokenWords<W> words(slot, j, lane);
        float sum[2][2][4] = {};
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            mma_f16(sum[i][k % 2], q.operand[k], words.operand(i, 2 * k), words.operand(i, 2 * k + 1));
          }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 ratio = *reinterpret_cast<const float2*>(&s.ratio[band][8 * (2 * j + i) + lane % 4 * 2]);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float x = sum[i][0][k] + sum[i][1][k];
            logits[2 * j + i][k] = (k % 2 ? ratio.y : ratio.x) * fmaf(x, q.factor[k / 2], q.offset[k / 2]);
          }
        }
      } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) logits[2 * j + k / 4][k % 4] = 0.0f;
      }
      const uint4 pe =
          load_shared_16(slot + BandSlot<W>::kPlane + BandSlot<W>::kParams + j * kOperandBlock + lane * 16);
      mma_bf16(logits[2 * j], q_pe, pe.x, pe.z);
      mma_bf16(logits[2 * j + 1], q_pe, pe.y, pe.w);
    }
  }

  // Adds the weighted codes of the page in a slot; count: the weights.
  __device__ __forceinline__ void add(const Factors& f, SharedAddress slot, float (&acc)[kGroups][4],
                                      float (&count)[4]) const {
    if constexpr (W > 0) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        std::uint32_t weight[4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float4 p = *reinterpret_cast<const float4*>(s.weight[2 * j + i][lane]);
          const float2 ratio = *reinterpret_cast<const float2*>(&s.ratio[band][8 * (2 * j + i) + lane % 4 * 2]);
          const float f0 = f.quarter[j][0] * 1024.0f, f1 = f.quarter[j][1] * 1024.0f;
          weight[2 * i] = pack_f16(p.x * (f0 * ratio.x), p.y * (f0 * ratio.y));
          weight[2 * i + 1] = pack_f16(p.z * (f1 * ratio.x), p.w * (f1 * ratio.y));
        }
        TokenWords<W> words(slot, j, lane);
        words.transpose();
        mma_f16(count, weight, 0x3c003c00u, 0x3c003c00u);
#pragma unroll
        for (int c = 0; c < kGroups; ++c) mma_f16(acc[c], weight, words.operand(0, c), words.operand(1, c));
      }
    }
  }

  // The sums in the cache basis, of accumulators of codes.
  __device__ __forceinline__ void finish(float (&acc)[kGroups][4], const float (&count)[4]) const {
    if constexpr (W > 0) {
      const float sigma = a.p.sigma[band], middle = 0.5f * static_cast<float>((1 << W) - 1);
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        const float unit = 0x1p14f / static_cast<float>(1 << Field<W>::exponent(c));
#pragma unroll
        for (int k = 0; k < 4; ++k) acc[c][k] = sigma * (acc[c][k] * unit - middle * (count[k] * 0x1p-10f));
      }
    }
  }

  __device__ __forceinline__ void run(int sequence, int first_head, int split, int part) const {
    const Tokens tokens(a.p, sequence);
    const int body = tokens.end - tokens.sink, pages = (body + kPageTokens - 1) / kPageTokens;
    const int parts = min(a.page_splits, max(1, pages / kLeastPages));
    const auto bound = [&](int i) {
      return static_cast<int>(static_cast<std::int64_t>(pages) * min(i, parts) / parts);
    };
    const int begin = bound(part), end = bound(part + 1);
    const std::int32_t* table = a.p.page_table + static_cast<std::int64_t>(sequence) * a.p.max_pages;
    for (int i = 0; i < a.stages - 1; ++i) {
      if (begin + i < end) copy(table, begin + i, i);
      ring.commit();
    }
    wait_for_previous();
    Softmax state;
    float acc[kGroups][4] = {}, count[4] = {};
    const BandQuery<W> q(a, sequence, first_head, band, lane);
    const uint4 q_pe = query_operand(a.p.q_pe, a.p.q_pe_stride, sequence, first_head, a.p.heads, 16 * band, lane);
    const float scale = a.p.scale * 1.4426950408889634f;
    int stage = 0, phase = 0;
    for (int i = begin; i < end; ++i) {
      __syncwarp();
      const int ahead = i + a.stages - 1;
      if (ahead < end) copy(table, ahead, stage == 0 ? a.stages - 1 : stage - 1);
      ring.commit();
      ring.wait(stage, phase, a.stages);
      const SharedAddress slot = slots + stage * BandSlot<W>::kBytes;
      if constexpr (W > 0) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int token = lane + 32 * half;
          std::uint32_t word = load_shared_4(slot + BandSlot<W>::kPlane + (token & ~3));
          const int byte = static_cast<std::int8_t>(word >> (token % 4 * 8));
          s.ratio[band][token] = exp2_approx(static_cast<float>(byte) * (1.0f / 32.0f));
        }
        __syncwarp();
      }
      float logits[8][4];
      score(q, q_pe, slot, logits);
      const int left = body - i * kPageTokens;
      const Factors f = exchange<8>(s, state, acc, count, logits, scale, band, lane, [&](int n) { return n < left; });
      add(f, slot, acc, count);
      if (++stage == a.stages) stage = 0, phase ^= 1;
    }
    finish(acc, count);
    store_part(a, s, state, acc, sequence, first_head, split, band, lane);
  }
};

}  // namespace oscar::kernels::latent
