// How the blocks that share an item pass their sums through global memory to the block that joins them, without fences
// or flags. A word itself shows whether it has arrived, so a sum is read one round trip after it was written.
#pragma once

#include <cstdint>

#include "kernels/decode/warp_merge.cuh"

namespace oscar::kernels {

// A float as a word that is never 0, since 0 stands for a float that has not arrived.
__device__ __forceinline__ std::uint32_t sealed(float x) { return __float_as_uint(x == 0.0f ? -0.0f : x); }

__device__ __forceinline__ void store_words(uint2* to, uint2 x) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(x.x), "r"(x.y) : "memory");
}
__device__ __forceinline__ uint2 load_words(const uint2* from) {
  uint2 x;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from) : "memory");
  return x;
}

// The data that one part of an item sends, in words that are 0 between launches.
template <class C>
struct PartSums {
  static constexpr int kSpans = C::D / 64;
  uint2 o[C::kHeads][C::D / 2];
  uint2 sums[C::kHeads][kSpans];  // m and l, once per joining warp

  // Prefetches the words during other work: the first use of cold memory takes a microsecond.
  __device__ __forceinline__ void read_ahead(int gqa_group, int lane) const {
    const char* from = reinterpret_cast<const char*>(o);
#pragma unroll 1
    for (int i = 128 * lane; i < gqa_group * C::D * 4; i += 128 * 32)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
    if (lane < 2) asm volatile("prefetch.global.L2 [%0];" ::"l"(reinterpret_cast<const char*>(sums) + 128 * lane));
  }
  __device__ __forceinline__ void send(int head, int channel, int lane, float m, float l, float2 x) {
    store_words(&o[head][channel / 2], make_uint2(sealed(x.x), sealed(x.y)));
    if (lane == 0) store_words(&sums[head][channel / 64], make_uint2(sealed(m), sealed(l)));
  }
};

// Adds the sums of the `others` earlier parts, in their order, to m, l and o, the sums of an item's last part. Waits
// for these sums and resets their words to 0. Full warps call it; factors: shared memory of the warp.
template <class C>
__device__ __forceinline__ void join_parts(PartSums<C>* item, int others, int head, int channel, int lane,
                                           SharedAddress factors, float& m, float& l, float2& o) {
  constexpr int kTogether = kJoinedSums;
  const uint2 zero = make_uint2(0, 0), nothing = make_uint2(sealed(0.0f), sealed(0.0f));
#pragma unroll 1
  for (int first = 0; first < others; first += kTogether) {
    PartSums<C>* part = item + first;
    const int count = min(kTogether, others - first);
    uint2 sums = make_uint2(sealed(kNoReference), sealed(0.0f)), x[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) x[k] = nothing;
    std::uint32_t least;
    do {
      if (lane < count) sums = load_words(&part[lane].sums[head][channel / 64]);
#pragma unroll
      for (int k = 0; k < kTogether; ++k)
        if (k < count) x[k] = load_words(&part[k].o[head][channel / 2]);
      least = min(sums.x, sums.y);
#pragma unroll
      for (int k = 0; k < kTogether; ++k) least = min(least, min(x[k].x, x[k].y));
    } while (!__all_sync(0xffffffffu, least != 0));
    // One lane holds the sums so far.
    JoinedSums joined(lane == kTogether ? m : __uint_as_float(sums.x), lane == kTogether ? l : __uint_as_float(sums.y));
    const float old = exp2_approx(m - joined.m);
    float weights[kTogether];
    joined.share_factors(weights, factors, lane);
    o.x *= old, o.y *= old;
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      o.x = fmaf(__uint_as_float(x[k].x), weights[k], o.x);
      o.y = fmaf(__uint_as_float(x[k].y), weights[k], o.y);
    }
    m = joined.m, l = joined.l;
    if (lane < count) store_words(&part[lane].sums[head][channel / 64], zero);
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (k < count) store_words(&part[k].o[head][channel / 2], zero);
  }
}

}  // namespace oscar::kernels
