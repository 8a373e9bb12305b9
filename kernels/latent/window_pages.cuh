// A warp's band of the BF16 windows of a part, half a window page (32 tokens) at a time.
#pragma once

#include "kernels/common/launch_kernel.cuh"
#include "kernels/latent/block_state.cuh"

namespace oscar::kernels::latent {

// Half pages of windows: which token is where.
struct WindowHalf {
  int base, ring_slot;  // first position (sink) or slot in the ring of the half; ring_slot -1: it is of the sink

  __device__ __forceinline__ WindowHalf(const LatentDecodeParams& p, int index) {
    const int page = index / 2, first = index % 2 * kWindowHalfTokens;
    base = page * kPageTokens + first;
    ring_slot = page < p.sink_pages ? -1 : base - p.sink_pages * kPageTokens;
  }
  __device__ __forceinline__ bool has_tokens(const Tokens& t) const {
    if (ring_slot < 0) return base < min(t.sink, t.length);
    if (t.length <= t.end) return false;
    const int before = ring_slot - t.end % t.ring + (ring_slot < t.end % t.ring ? t.ring : 0);
    const int inside = before == 0 ? 0 : t.ring - before;
    return before < t.length - t.end || inside < kWindowHalfTokens;
  }
  __device__ __forceinline__ bool visible(const Tokens& t, int i) const {
    if (ring_slot < 0) return base + i < min(t.sink, t.length);
    if (t.length <= t.end) return false;
    int back = (t.length - 1) % t.ring - (ring_slot + i);  // tokens from this slot's to the newest
    if (back < 0) back += t.ring;
    return t.length - 1 - back >= t.end;
  }
};

struct WindowPages {
  const Launch& a;
  Shared& s;
  const CopyRing ring;
  const int band, lane;

  __device__ __forceinline__ void run(int sequence, int first_head, int split) const {
    constexpr int kTiles = kWindowHalfTokens / 8;
    wait_for_previous();
    const Tokens tokens(a.p, sequence);
    const SharedAddress slot = shared_address(s.ring) + band * (kWindowBandBytes + kWindowRopeBytes);
    const int columns = a.p.sink_pages + a.p.ring_pages;
    Softmax state;
    float acc[kGroups][4] = {}, count[4] = {};
    uint4 q[kSteps];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      q[k] = query_operand(a.p.q_latent, a.p.q_latent_stride, sequence, first_head, a.p.heads,
                           band * kBandChannels + 16 * k, lane);
    }
    const uint4 q_pe = query_operand(a.p.q_pe, a.p.q_pe_stride, sequence, first_head, a.p.heads, 16 * band, lane);
    const float scale = a.p.scale * 1.4426950408889634f;
    int phase = 0;
    for (int i = split; i < 2 * columns; i += a.window_splits) {
      const WindowHalf half(a.p, i);
      if (!half.has_tokens(tokens)) continue;
      const std::uint8_t* from =
          a.p.window_pages +
          a.p.window_table[sequence * columns + i / 2] * static_cast<std::int64_t>(kLatentWindowBytes) +
          i % 2 * kWindowHalfBytes;
      __syncwarp();
      ring.copy(
          lane, 0, {slot, from + band * kWindowBandBytes, kWindowBandBytes},
          {slot + kWindowBandBytes, from + kBands * kWindowBandBytes + band * kWindowRopeBytes, kWindowRopeBytes});
      ring.commit();
      ring.wait(0, phase, 1);
      phase ^= 1;
      float logits[kTiles][4] = {};
#pragma unroll
      for (int k = 0; k <= kSteps; ++k) {  // the last step is the RoPE part, which follows the latent channels
#pragma unroll
        for (int j = 0; j < kTiles / 2; ++j) {
          const uint4 c = load_shared_16(slot + (k * (kTiles / 2) + j) * kOperandBlock + lane * 16);
          mma_bf16(logits[2 * j], k < kSteps ? q[k % kSteps] : q_pe, c.x, c.z);
          mma_bf16(logits[2 * j + 1], k < kSteps ? q[k % kSteps] : q_pe, c.y, c.w);
        }
      }
      const Factors f = exchange<kTiles>(s, state, acc, count, logits, scale, band, lane,
                                         [&](int n) { return half.visible(tokens, n); });
      add<kTiles>(f, slot, acc);
    }
    store_part(a, s, state, acc, sequence, first_head, split, band, lane);
  }

  // Weights are two BF16 terms, so that the sums are as exact as the latents.
  template <int kTiles>
  __device__ __forceinline__ void add(const Factors& f, SharedAddress slot, float (&acc)[kGroups][4]) const {
#pragma unroll
    for (int j = 0; j < kTiles / 2; ++j) {
      std::uint32_t high[4], low[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 p = *reinterpret_cast<const float4*>(s.weight[2 * j + i][lane]);
        const float f0 = f.quarter[2 * j + i][0], f1 = f.quarter[2 * j + i][1];
        const float x[4] = {p.x * f0, p.y * f0, p.z * f1, p.w * f1};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const std::uint32_t top = pack_bf16(x[2 * r], x[2 * r + 1]);
          high[2 * i + r] = top;
          low[2 * i + r] = pack_bf16(x[2 * r] - low_bf16(top), x[2 * r + 1] - high_bf16(top));
        }
      }
      const uint4 most = make_uint4(high[0], high[1], high[2], high[3]),
                  rest = make_uint4(low[0], low[1], low[2], low[3]);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const uint4 c = load_shared_16(slot + (k * (kTiles / 2) + j) * kOperandBlock + lane * 16);
        const std::uint32_t even[2] = {transpose_8x8(c.x), transpose_8x8(c.y)};
        const std::uint32_t odd[2] = {transpose_8x8(c.z), transpose_8x8(c.w)};
        mma_bf16(acc[2 * k], most, even[0], even[1]);
        mma_bf16(acc[2 * k + 1], most, odd[0], odd[1]);
        mma_bf16(acc[2 * k], rest, even[0], even[1]);
        mma_bf16(acc[2 * k + 1], rest, odd[0], odd[1]);
      }
    }
  }
};

}  // namespace oscar::kernels::latent
