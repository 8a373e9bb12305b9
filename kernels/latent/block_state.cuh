// What the four warps of a latent decode block share, and what each keeps. Warp b has band b: 128 latent channels, and
// 16 of the 64 RoPE channels. So a code is expanded by one warp only, for its logits and for its sums, and no block
// barrier waits for codes. The warps exchange partial logits and weights.
#pragma once

#include <cstdint>

#include "kernels/common/latent_page.h"
#include "kernels/decode/mma.cuh"
#include "kernels/decode/pipeline.cuh"
#include "kernels/decode/shared_memory.cuh"
#include "kernels/latent/latent_decode.h"

namespace oscar::kernels::latent {

inline constexpr int kBands = 4, kThreads = 32 * kBands;
inline constexpr int kHeadTile = 16;                            // query heads of a block
inline constexpr int kBandChannels = kLatentChannels / kBands;  // 128
inline constexpr int kSteps = kBandChannels / 16;               // tensor-core steps along a band's channels
inline constexpr int kGroups = kBandChannels / 8;               // tiles of eight channels of a band's sums
inline constexpr int kMostStages = 4;
inline constexpr int kLeastPages = 2;  // of a part; a short sequence leaves parts empty
inline constexpr int kRingBytes = 52 * 1024;
inline constexpr int kRopeBandBytes = kRopePartBytes / kBands;                  // of a page
inline constexpr int kWindowBandBytes = kWindowHalfTokens * kBandChannels * 2;  // of half a window page
inline constexpr int kWindowRopeBytes = kWindowHalfTokens * kRopeChannels / kBands * 2;
inline constexpr float kNone = -__builtin_huge_valf();
static_assert(kBands * (kWindowBandBytes + kWindowRopeBytes) <= kRingBytes &&
              kBands * kRopeBandBytes == kRopePartBytes);

struct Shared {
  std::uint8_t ring[kRingBytes];     // the slots of each warp, one warp after the other
  float partial[kBands][8][32][4];   // logits of each band: tile of eight tokens, lane, accumulator
  float weight[8][32][4];            // of all bands, less the largest logit of their quarter
  float most[kBands][kHeadTile];     // the largest logit of each quarter of the tokens
  float ratio[kBands][kPageTokens];  // scale of each token of a page over the band's sigma
  float sum[kBands][kHeadTile];      // at the end: of the weights of each quarter
  std::uint64_t barrier[kBands][kMostStages];
};

// Launch constants and the division of the work.
struct Launch {
  LatentDecodeParams p;
  LatentPage page;
  std::int32_t head_tiles, page_splits, window_splits;
  std::int32_t stages;  // of the ring: pages in flight
  float* part_sums;     // [B, H, splits, 512]
  float2* part_logs;    // [B, H, splits]: largest logit (base 2), sum of the weights less it

  OSCAR_HOST_DEVICE std::int32_t splits() const { return page_splits + window_splits; }
};

// Tokens of a sequence by their storage.
struct Tokens {
  int length, sink, end, ring;  // tokens [sink, end) are codes; ring: tokens of the ring

  __device__ __forceinline__ Tokens(const LatentDecodeParams& p, int sequence)
      : length(p.lengths[sequence]), sink(p.sink), end(max(p.sink, length - p.recent)), ring(64 * p.ring_pages) {}
};

__device__ __forceinline__ void block_barrier() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }

// The running softmax of a block. A lane has rows g and g + 8 of the head tile; row maxima are equal in all warps.
struct Softmax {
  float most[2] = {kNone, kNone};  // base 2
  float sum[2] = {0.0f, 0.0f};     // of this warp's quarter of the tokens and this lane's columns
};

// A lane's factors of one pass over tokens: what the weights of each quarter are multiplied by.
struct Factors {
  float quarter[kBands][2];
};

// Adds up the bands' logits (natural units, before the scale) of 8 NT tokens and makes them weights. visible(i): token
// i of the pass exists. acc: the sums so far, rescaled where a row's maximum grows.
template <int NT, class Visible>
__device__ __forceinline__ Factors exchange(Shared& s, Softmax& state, float (&acc)[kGroups][4], float (&count)[4],
                                            const float (&logits)[NT][4], float scale, int band, int lane,
                                            const Visible& visible) {
  constexpr int kOwn = NT / kBands;  // tiles of this warp's quarter
  const int t = lane % 4, g = lane / 4;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    *reinterpret_cast<float4*>(s.partial[band][n][lane]) =
        make_float4(logits[n][0], logits[n][1], logits[n][2], logits[n][3]);
  }
  block_barrier();
  float own[kOwn][4], most[2] = {kNone, kNone};
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int n = band * kOwn + i;
    float4 x = *reinterpret_cast<const float4*>(s.partial[0][n][lane]);
#pragma unroll
    for (int b = 1; b < kBands; ++b) {
      const float4 y = *reinterpret_cast<const float4*>(s.partial[b][n][lane]);
      x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
    }
    const bool first = visible(8 * n + 2 * t), second = visible(8 * n + 2 * t + 1);
    own[i][0] = first ? x.x * scale : kNone, own[i][1] = second ? x.y * scale : kNone;
    own[i][2] = first ? x.z * scale : kNone, own[i][3] = second ? x.w * scale : kNone;
    most[0] = fmaxf(most[0], fmaxf(own[i][0], own[i][1])), most[1] = fmaxf(most[1], fmaxf(own[i][2], own[i][3]));
  }
  float added[2] = {0.0f, 0.0f};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
    most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
    if (t == 0) s.most[band][g + 8 * r] = most[r];
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float base = most[k / 2] == kNone ? 0.0f : most[k / 2];
      own[i][k] = exp2_approx(own[i][k] - base);
      added[k / 2] += own[i][k];
    }
    *reinterpret_cast<float4*>(s.weight[band * kOwn + i][lane]) =
        make_float4(own[i][0], own[i][1], own[i][2], own[i][3]);
  }
  block_barrier();
  Factors f;
  bool grows = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float quarter[kBands], all = state.most[r];
#pragma unroll
    for (int b = 0; b < kBands; ++b) quarter[b] = s.most[b][g + 8 * r], all = fmaxf(all, quarter[b]);
    const float base = all == kNone ? 0.0f : all, kept = exp2_approx(state.most[r] - base);
#pragma unroll
    for (int b = 0; b < kBands; ++b) f.quarter[b][r] = exp2_approx(quarter[b] - base);
    state.sum[r] = state.sum[r] * kept + added[r] * exp2_approx(most[r] - base);
    grows = grows || kept != 1.0f;
    state.most[r] = all, most[r] = kept;
  }
  if (__any_sync(0xffffffffu, grows)) {
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
#pragma unroll
      for (int k = 0; k < 4; ++k) acc[c][k] *= most[k / 2];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) count[k] *= most[k / 2];
  }
  return f;
}

// The part's results, for the merge: sums in the cache basis, in units of exp2(most).
__device__ __forceinline__ void store_part(const Launch& a, Shared& s, const Softmax& state,
                                           const float (&acc)[kGroups][4], int sequence, int first_head, int split,
                                           int band, int lane) {
  const int t = lane % 4, g = lane / 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (t == 0) s.sum[band][g + 8 * r] = sum;
  }
  block_barrier();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = first_head + g + 8 * r;
    if (head >= a.p.heads) continue;
    const std::int64_t row = (static_cast<std::int64_t>(sequence) * a.p.heads + head) * a.splits() + split;
    if (band == 0 && t == 0) {
      float sum = 0.0f;
#pragma unroll
      for (int b = 0; b < kBands; ++b) sum += s.sum[b][g + 8 * r];
      a.part_logs[row] = make_float2(state.most[r], sum);
    }
    if (state.most[r] == kNone) continue;
    float* to = a.part_sums + row * kLatentChannels + band * kBandChannels + 2 * t;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      *reinterpret_cast<float2*>(to + 8 * c) = make_float2(acc[c][2 * r], acc[c][2 * r + 1]);
    }
  }
}

// Two neighboring channels of a head; zeros where the tile has no such head.
__device__ __forceinline__ std::uint32_t query_pair(const std::uint16_t* q, const std::int64_t (&stride)[2],
                                                    int sequence, int head, int heads, int channel) {
  if (head >= heads) return 0;
  return __ldg(reinterpret_cast<const unsigned*>(q + sequence * stride[0] + head * stride[1] + channel));
}

// The BF16 operand of 16 channels from `channel` on.
__device__ __forceinline__ uint4 query_operand(const std::uint16_t* q, const std::int64_t (&stride)[2], int sequence,
                                               int first_head, int heads, int channel, int lane) {
  const int t = lane % 4, g = lane / 4;
  const auto pair = [&](int row, int c) {
    return query_pair(q, stride, sequence, first_head + row, heads, channel + c + 2 * t);
  };
  return make_uint4(pair(g, 0), pair(g + 8, 0), pair(g, 8), pair(g + 8, 8));
}

}  // namespace oscar::kernels::latent
