// The streaming kernel: a grid of resident blocks divides the batch by cost (schedule.cuh). Parts of one item meet in
// global memory, and the last block to arrive merges them. Supports every shape and ragged batches.
#pragma once

#include "kernels/common/hopper_code.h"
#include "kernels/decode/merge.cuh"
#include "kernels/decode/warp_loop.cuh"

namespace oscar::kernels {

// Converts units of an item to a warp's BF16 tiles (two units each, they come first) and pages.
__device__ __forceinline__ WarpShare warp_share(const ItemRange& item, int warp, int warps) {
  const int window_units = 2 * item.plan.window_tiles();
  return WarpShare::make(item.plan.page_begin + max(0, item.from - window_units),
                         item.plan.page_begin + max(0, item.to - window_units), min(window_units, item.from + 1) / 2,
                         min(window_units, item.to + 1) / 2, warp, warps);
}

// Writes the block's result: to the output, or to its partial result if other blocks share the item.
template <class C>
__device__ __forceinline__ void write_item(const PagedDecodeParams& p, const BlockMerge<C>& merge,
                                           const ItemRange& item, int gqa_group, Partial<C>& partial) {
  constexpr int D = C::D;
#pragma unroll 1
  for (int i = 2 * threadIdx.x; i < gqa_group * D; i += 2 * C::kThreads) {
    const int head = i / D, channel = i % D;
    const float2 o = merge.output(head, channel);
    if (item.parts == 1) {
      const float m = merge.reference(head), l = merge.sum(head);
      write_output<C>(p, item.sequence, item.kv_head * gqa_group + head, channel, m, l, o.x);
      write_output<C>(p, item.sequence, item.kv_head * gqa_group + head, channel + 1, m, l, o.y);
    } else {
      __stcg(reinterpret_cast<float2*>(&partial.o[head][channel]), o);
      if (channel == 0) __stcg(&partial.m[head], merge.reference(head)), __stcg(&partial.l[head], merge.sum(head));
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm) stream_kernel(const __grid_constant__ DecodeLaunch a) {
  if constexpr (C::kNotHopper && kCodeIsHopper) return;
  let_next_start();
  const PagedDecodeParams& p = a.p;
  extern __shared__ __align__(128) std::uint8_t pool[];
  __shared__ DecodeShared<C> shared;

  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int gqa_group = a.gqa_group;
  const CopyRing ring{shared_address(&shared.barriers[warp * C::kMaxSlots])};
  ring.init(lane, a.slots);
  RingPosition at{shared_address(pool) + warp * a.slots * a.slot_bytes};
  std::uint8_t* item_shared = pool + a.pool_bytes;
  SharedAddress scratch = shared_address(item_shared) + C::Codes::kItemBytes + warp * C::Codes::kScratchBytes;
  keep(at.slots), keep(scratch);

  BlockWork block(p, C::kWarps);
  if (block.empty) return;

  int* arrivals = static_cast<int*>(p.workspace);
  Partial<C>* partials = reinterpret_cast<Partial<C>*>(arrivals + arrival_counters(p.batch * p.kv_heads));

  bool first_item = true;
#pragma unroll 1
  while (true) {
    const ItemRange item = block.next_item(p);
    if (item.from == item.to) {  // a sequence without tokens
      if (!block.advance(item)) return;
      continue;
    }
    const SequencePlan& plan = item.plan;
    const int sequence = item.sequence, kv_head = item.kv_head;
    const WarpShare share = warp_share(item, warp, C::kWarps);
    PageIds ids;
    WindowPages windows;
    windows.load(p, sequence, lane);
    ids.load(p.page_table + static_cast<long long>(sequence) * p.max_pages, share, 0, lane);
    typename C::Codes::Query query;
    const std::uint32_t* queries = written_queries<C>(p, sequence, kv_head, gqa_group);
    query.load(a, queries, kv_head, warp, lane);
    WarpWork<C> work;
    work.run(a, plan, sequence, kv_head, share, ids, windows, shared, queries, query, ring, at, scratch, item_shared,
             warp, lane, [] {});

    // Merges the warps through shared memory. Every copy of this warp has been consumed, so the ring is free.
    __syncthreads();
    const BlockMerge<C> merge(pool);
    merge.put(a, work.state, gqa_group, warp, lane);

    // A block cuts at most two items: the item in whose middle it begins, and the item that it leaves unfinished.
    Partial<C>& partial = partials[2 * blockIdx.x + (first_item ? 0 : 1)];
    write_item<C>(p, merge, item, gqa_group, partial);
    if (item.parts > 1 && last_to_arrive(&arrivals[sequence * p.kv_heads + kv_head], item.parts, shared.last_arriver)) {
      merge_parts<C>(p, partials + 2 * item.first_block, item, gqa_group, reinterpret_cast<float*>(pool));
    }
    if (!block.advance(item)) return;
    first_item = false;
    __syncthreads();  // the ring is written by bulk copies next
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }
}

}  // namespace oscar::kernels
