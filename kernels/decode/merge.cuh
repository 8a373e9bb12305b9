// Merges of partial results: of a block's warps through shared memory, and of the parts of an item; and writing the
// output.
#pragma once

#include <cuda_bf16.h>

#include "kernels/decode/config.cuh"
#include "kernels/decode/schedule.cuh"
#include "kernels/decode/warp_state.cuh"

namespace oscar::kernels {

template <class C>
__device__ __forceinline__ void write_output(const PagedDecodeParams& p, int sequence, int query_head, int channel,
                                             float m, float l, float o) {
  if (p.sink_logits != nullptr) l += exp2_approx(p.sink_logits[query_head] * kLog2E - m);
  const float value = l == 0.0f ? 0.0f : o / l;  // a sum that is not a number must show
  const long long head = static_cast<long long>(sequence) * p.query_heads + query_head, at = head * C::D + channel;
  if (channel == 0 && p.lse != nullptr) p.lse[head] = l == 0.0f ? -INFINITY : (m + log2f(l)) / kLog2E;
  if (p.out_float) {
    static_cast<float*>(p.out)[at] = value;
  } else {
    static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16(value);
  }
}

// Merges the warps of a block in shared memory, each scaled to the block's common reference.
template <class C>
struct BlockMerge {
  float *m, *l, *o;  // [kWarps][kHeads], the same, [kWarps][kHeads][kMergeRow]

  __device__ __forceinline__ explicit BlockMerge(std::uint8_t* pool)
      : m(reinterpret_cast<float*>(pool)), l(m + C::kWarps * C::kHeads), o(l + C::kWarps * C::kHeads) {}

  // All threads call it; the pool must be free. Ends with a barrier.
  __device__ __forceinline__ void put(const DecodeLaunch& a, const WarpState<C::D, C::NT>& state, int gqa_group,
                                      int warp, int lane) const {
    using Head = HeadFragment<C::NT>;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (Head::first_of_head(lane)) m[warp * C::kHeads + Head::head(i, lane)] = state.m[i];
    __syncthreads();
    const float2 top = warp_reference(lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int head = Head::head(i, lane);
      const float factor = exp2_approx(state.m[i] - (i == 0 ? top.x : top.y));
      const float sum = Head::over_head(state.l[i] * factor, [](float x, float y) { return x + y; });
      if (Head::first_of_head(lane)) l[warp * C::kHeads + head] = sum;
      if (head >= gqa_group) continue;
      float* to = o + (warp * C::kHeads + head) * C::kMergeRow + Head::row(0, lane);
#pragma unroll
      for (int s = 0; s < C::D / 16; ++s) {
        const int step = C::Codes::channel_step(a, s);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float x = state.o[s][Head::index(half, i, 0)] * factor;
          if constexpr (Head::kHeadRows) {
            *reinterpret_cast<float2*>(to + 16 * step + 8 * half) =
                make_float2(x, state.o[s][Head::index(half, i, 1)] * factor);
          } else {
            to[16 * step + 8 * half] = x;
          }
        }
      }
    }
    __syncthreads();
  }

  // The block's references for the lane's two heads: lanes with the same heads divide the warps among themselves.
  __device__ __forceinline__ float2 warp_reference(int lane) const {
    using Head = HeadFragment<C::NT>;
    constexpr int kLanes = Head::kHeadRows ? 4 : 8;
    const int first = Head::kHeadRows ? lane & 3 : lane >> 2;
    float2 top = make_float2(kNoReference, kNoReference);
#pragma unroll
    for (int v = 0; v < C::kWarps; v += kLanes) {
      if (v + first >= C::kWarps) continue;
      const float* of = m + (v + first) * C::kHeads + Head::head(0, lane);
      const float2 x = Head::kHeadRows ? make_float2(of[0], of[8]) : *reinterpret_cast<const float2*>(of);
      top.x = fmaxf(top.x, x.x), top.y = fmaxf(top.y, x.y);
    }
    const auto larger = [](float x, float y) { return fmaxf(x, y); };
    return make_float2(Head::over_head(top.x, larger), Head::over_head(top.y, larger));
  }

  __device__ __forceinline__ float reference(int head) const {
    float top = m[head];
#pragma unroll
    for (int v = 1; v < C::kWarps; ++v) top = fmaxf(top, m[v * C::kHeads + head]);
    return top;
  }
  __device__ __forceinline__ float sum(int head) const {
    float total = 0.0f;
#pragma unroll
    for (int v = 0; v < C::kWarps; ++v) total += l[v * C::kHeads + head];
    return total;
  }
  // Outputs `channel` and `channel` + 1; channel is even.
  __device__ __forceinline__ float2 output(int head, int channel) const {
    float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int v = 0; v < C::kWarps; ++v) {
      const float2 x = *reinterpret_cast<const float2*>(o + (v * C::kHeads + head) * C::kMergeRow + channel);
      total.x += x.x, total.y += x.y;
    }
    return total;
  }
};

// Counters of arrived parts at the start of the workspace: one per item and block of a cluster. The partial results
// after them start at the same offset for up to 4,096 items. So they never overlap the counters of a larger batch in
// the same workspace.
OSCAR_HD constexpr int arrival_counters(int items) { return (items * 16 + 65535) / 65536 * 65536; }

// One block's result for an item that is cut at a block boundary.
template <class C>
struct Partial {
  float m[C::kHeads], l[C::kHeads], o[C::kHeads][C::D];
};

// True if this block is the last of `parts` to arrive; it then sees what the others wrote before. All threads call it;
// flag: shared memory. Afterwards the counter is ready for the next launch.
__device__ __forceinline__ bool last_to_arrive(int* counter, int parts, int& flag) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    flag = atomicAdd(counter, 1) == parts - 1;
    if (flag) *counter = 0;
  }
  __syncthreads();
  if (!flag) return false;
  __threadfence();
  return true;
}

// Merges an item's parts in block order. results: two per block, from the item's first block on; scratch: shared memory
// for two floats per part and head, and four per thread.
template <class C>
__device__ __forceinline__ void merge_parts(const PagedDecodeParams& p, const Partial<C>* results,
                                            const ItemRange& item, int gqa_group, float* scratch) {
  constexpr int D = C::D;
  const int tid = threadIdx.x, parts = item.parts;
  const auto part_of = [&](int i) -> const Partial<C>& { return results[2 * i + (i == 0 && item.second ? 1 : 0)]; };
  float* part_m = scratch;  // [parts][kHeads]: m, then the part's weight
  float* part_l = part_m + C::kHeads * parts;
#pragma unroll 1
  for (int i = tid; i < C::kHeads * parts; i += C::kThreads) {
    part_m[i] = __ldcg(&part_of(i / C::kHeads).m[i % C::kHeads]);
    part_l[i] = __ldcg(&part_of(i / C::kHeads).l[i % C::kHeads]);
  }
  __syncthreads();
  float* head_m = part_l + C::kHeads * parts;  // [kHeads]
  float* head_l = head_m + C::kHeads;          // [kHeads]
  // One warp per head: the largest reference, the weights, their sum.
#pragma unroll 1
  for (int head = tid / 32; head < gqa_group; head += C::kWarps) {
    const int lane = tid & 31;
    float m = kNoReference, l = 0.0f;
#pragma unroll 1
    for (int b = lane; b < parts; b += 32) m = fmaxf(m, part_m[b * C::kHeads + head]);
#pragma unroll 1
    for (int offset = 16; offset > 0; offset /= 2) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, offset));
#pragma unroll 1
    for (int b = lane; b < parts; b += 32) {
      const float f = exp2_approx(part_m[b * C::kHeads + head] - m);
      part_m[b * C::kHeads + head] = f;
      l = fmaf(part_l[b * C::kHeads + head], f, l);
    }
#pragma unroll 1
    for (int offset = 16; offset > 0; offset /= 2) l += __shfl_xor_sync(0xffffffffu, l, offset);
    if (lane == 0) head_m[head] = m, head_l[head] = l;
  }
  __syncthreads();
  // Four channels per thread; spare threads process slices of the parts in parallel.
  const int columns = gqa_group * (D / 4);
  const int slices = max(1, min(4, C::kThreads / columns));
  float4* slice_sum = reinterpret_cast<float4*>(head_l + C::kHeads);  // [slices][columns]
#pragma unroll 1
  for (int i = tid; i < slices * columns; i += C::kThreads) {
    const int slice = i / columns, column = i - slice * columns, head = column / (D / 4), c = column % (D / 4);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int b = slice; b < parts; b += slices) {
      const float4 o = __ldcg(reinterpret_cast<const float4*>(&part_of(b).o[head][4 * c]));
      const float f = part_m[b * C::kHeads + head];
      sum.x = fmaf(o.x, f, sum.x), sum.y = fmaf(o.y, f, sum.y), sum.z = fmaf(o.z, f, sum.z),
      sum.w = fmaf(o.w, f, sum.w);
    }
    slice_sum[i] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int i = tid; i < gqa_group * D; i += C::kThreads) {
    float o = 0.0f;
#pragma unroll 1
    for (int slice = 0; slice < slices; ++slice) o += reinterpret_cast<const float*>(slice_sum + slice * columns)[i];
    write_output<C>(p, item.sequence, item.kv_head * gqa_group + i / D, i % D, head_m[i / D], head_l[i / D], o);
  }
}

}  // namespace oscar::kernels
