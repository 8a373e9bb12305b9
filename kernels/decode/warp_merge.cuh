// The merge of the parts kernel: softmax sums relative to several references, one per lane, become one sum. It is used
// at both levels: for the warps of a block and for the parts of an item.
#pragma once

#include <cuda_bf16.h>

#include "kernels/decode/config.cuh"
#include "kernels/decode/merge.cuh"

namespace oscar::kernels {

// Shared memory of a block of the parts kernel in addition to its pool.
template <class C>
struct PartsShared : DecodeShared<C> {
  float m[C::kHeads][C::kWarps], l[C::kHeads][C::kWarps];  // sums that the warps exchange
  alignas(16) float factors[C::kWarps][16];                // JoinedSums::share_factors()
  std::uint32_t any_parameter;
};

// Writes outputs `channel` and `channel` + 1 from their sums relative to reference m.
template <class C>
__device__ __forceinline__ void write_output(const PagedDecodeParams& p, int sequence, int query_head, int channel,
                                             float m, float l, float2 o) {
  if (p.sink_logits != nullptr) l += exp2_approx(p.sink_logits[query_head] * kLog2E - m);
  const float inverse = l == 0.0f ? 0.0f : __fdividef(1.0f, l), x = o.x * inverse, y = o.y * inverse;
  const long long head = static_cast<long long>(sequence) * p.query_heads + query_head, at = head * C::D + channel;
  if (channel == 0 && p.lse != nullptr) p.lse[head] = l == 0.0f ? -INFINITY : (m + log2f(l)) / kLog2E;
  if (p.out_float) {
    *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at) = make_float2(x, y);
  } else {
    *reinterpret_cast<std::uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + at) = pack_bf16(x, y);
  }
}

// Softmax sums relative to several references, one per lane, converted to a common reference.
inline constexpr int kJoinedSums = 16;  // number of sums whose factors are shared
struct JoinedSums {
  float factor;  // factor of this lane's sum
  float m, l;    // common reference and sum

  // All lanes call it; lanes without a sum have m = kNoReference.
  __device__ __forceinline__ JoinedSums(float lane_m, float lane_l) {
    m = warp_max(lane_m);
    factor = exp2_approx(lane_m - m);
    l = lane_l * factor;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) l += __shfl_xor_sync(0xffffffffu, l, offset);
  }
  // Uses one instruction for integers; as integers, floats keep their order except among negative ones.
  __device__ __forceinline__ static float warp_max(float x) {
    const auto turned = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
    return __int_as_float(turned(__reduce_max_sync(0xffffffffu, turned(__float_as_int(x)))));
  }
  // Shares the factors of the first lanes through shared memory of the warp.
  __device__ __forceinline__ void share_factors(float (&factors)[kJoinedSums], SharedAddress at, int lane) const {
    __syncwarp();
    if (lane < kJoinedSums) store_shared_4(at + 4 * lane, __float_as_uint(factor));
    __syncwarp();
    load_shared_floats(factors, at);
  }
};

// Merges the warps of a block in shared memory. Each warp leaves its results in its own ring, whose copies it has
// consumed, so one barrier is enough. A warp then adds up 64 channels of a head.
template <class C>
struct WarpMerge {
  PartsShared<C>& sums;
  float* o;    // [warp][kHeads][kMergeRow]
  int stride;  // floats per warp

  __device__ __forceinline__ WarpMerge(PartsShared<C>& sums_, std::uint8_t* pool, int warp_bytes)
      : sums(sums_), o(reinterpret_cast<float*>(pool)), stride(warp_bytes / 4) {}

  // All threads call it. Ends with a barrier.
  __device__ __forceinline__ void put(const DecodeLaunch& a, const WarpState<C::D, C::NT>& state, int gqa_group,
                                      int warp, int lane) const {
    using Head = HeadFragment<C::NT>;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = Head::head(i, lane);
      const float sum = Head::over_head(state.l[i], [](float x, float y) { return x + y; });
      if (Head::first_of_head(lane)) sums.m[head][warp] = state.m[i], sums.l[head][warp] = sum;
      if (head >= gqa_group) continue;
      float* to = o + warp * stride + head * C::kMergeRow + Head::row(0, lane);
#pragma unroll
      for (int s = 0; s < C::D / 16; ++s) {
        const int step = C::Codes::channel_step(a, s);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float x = state.o[s][Head::index(half, i, 0)];
          if constexpr (Head::kHeadRows) {
            *reinterpret_cast<float2*>(to + 16 * step + 8 * half) = make_float2(x, state.o[s][Head::index(half, i, 1)]);
          } else {
            to[16 * step + 8 * half] = x;
          }
        }
      }
    }
    __syncthreads();
  }

  // Full warps call f(head, channel, m, l, o): o are the sums of outputs `channel` and `channel` + 1 relative to
  // reference m, and l is the sum of the head's weights. channel: 64 k + 2 lane. factors: shared memory of the warp.
  template <class F>
  __device__ __forceinline__ void each_sum(int gqa_group, int warp, int lane, SharedAddress factors, F&& f) const {
    constexpr int kSpans = C::D / 64;
#pragma unroll 1
    for (int i = warp; i < gqa_group * kSpans; i += C::kWarps) {
      const int head = i / kSpans, channel = i % kSpans * 64 + 2 * lane;
      const bool live = lane < C::kWarps;
      const JoinedSums sum(live ? sums.m[head][lane] : kNoReference, live ? sums.l[head][lane] : 0.0f);
      float weights[kJoinedSums];
      sum.share_factors(weights, factors, lane);
      float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int v = 0; v < C::kWarps; ++v) {
        const float2 x = *reinterpret_cast<const float2*>(o + v * stride + head * C::kMergeRow + channel);
        total.x = fmaf(x.x, weights[v], total.x), total.y = fmaf(x.y, weights[v], total.y);
      }
      f(head, channel, sum.m, sum.l, total);
    }
  }
};

}  // namespace oscar::kernels
