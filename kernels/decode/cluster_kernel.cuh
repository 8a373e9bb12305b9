// The cluster kernel (Hopper), for few (sequence, KV head) items. A fixed number of clusters of blocks shares each
// item. Unlike the streaming kernel, it computes no schedule, and it reads page ids together with the lengths. The
// blocks' results meet in distributed shared memory: every block sends each other block of its cluster a share of the
// outputs. After one cluster barrier each block adds what it received, in block order. If several clusters share an
// item, their blocks of equal rank meet in global memory, and the last to arrive adds the parts in order. So the result
// does not depend on timing.
#pragma once

#include "kernels/decode/cluster_outputs.cuh"
#include "kernels/decode/merge.cuh"
#include "kernels/decode/warp_loop.cuh"

namespace oscar::kernels {

// Grid: (parts * cluster size, KV heads, batch).
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm) cluster_kernel(const __grid_constant__ DecodeLaunch a) {
#if __CUDA_ARCH__ >= 900
  let_next_start();
  const PagedDecodeParams& p = a.p;
  constexpr int D = C::D;
  extern __shared__ __align__(128) std::uint8_t pool[];
  __shared__ DecodeShared<C> shared;

  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int sequence = blockIdx.z, kv_head = blockIdx.y, gqa_group = a.gqa_group;
  const int rank = static_cast<int>(cluster_rank()), size = static_cast<int>(cluster_size());
  // Neighboring pages go to different blocks.
  const int index = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
            stride = C::kWarps * static_cast<int>(gridDim.x);

  const int length = __ldg(p.lengths + sequence);
  const std::int32_t* table = p.page_table + static_cast<long long>(sequence) * p.max_pages;
  PageIds ids;
  WindowPages windows;
  windows.load(p, sequence, lane);
  if (p.sliding_window == 0 && p.chunk == 0) {
    // The body begins with page 0 for any length, so there is no need to wait for the length.
    ids.id = index + lane * stride < p.max_pages ? __ldg(table + index + lane * stride) : 0;
  }
  const CopyRing ring{shared_address(&shared.barriers[warp * C::kMaxSlots])};
  ring.init(lane, a.slots);
  typename C::Codes::Query query;
  const std::uint32_t* queries = written_queries<C>(p, sequence, kv_head, gqa_group);
  query.load(a, queries, kv_head, warp, lane);
  const SequencePlan plan = SequencePlan::make(p, length);
  if (length <= 0) return;  // the full cluster returns
  const WarpShare share = WarpShare::make(plan.page_begin, plan.page_end, 0, plan.window_tiles(), index, stride);
  if (p.sliding_window != 0 || p.chunk != 0) ids.load(table, share, 0, lane);
  RingPosition at{shared_address(pool) + warp * a.slots * a.slot_bytes};
  std::uint8_t* item_shared = pool + a.pool_bytes;
  SharedAddress scratch = shared_address(item_shared) + C::Codes::kItemBytes + warp * C::Codes::kScratchBytes;
  keep(at.slots), keep(scratch);
  WarpWork<C> work;
  // The first half of the cluster barrier announces that a block has started; the wait is before the first store into
  // it.
  work.run(a, plan, sequence, kv_head, share, ids, windows, shared, queries, query, ring, at, scratch, item_shared,
           warp, lane, [] { cluster_arrive_relaxed(); });

  __syncthreads();
  const BlockMerge<C> merge(pool);
  merge.put(a, work.state, gqa_group, warp, lane);

  const ClusterOutputs<C> shares(pool + a.pool_bytes + C::kScratchBytes, gqa_group, rank, size);
  cluster_wait();
  shares.send_shares(merge, gqa_group, warp, lane);
  cluster_arrive();
  cluster_wait();
  int* arrivals = static_cast<int*>(p.workspace);
  const int item = sequence * p.kv_heads + kv_head;
  Partial<C>* partials =
      reinterpret_cast<Partial<C>*>(arrivals + arrival_counters(p.batch * p.kv_heads)) + item * a.parts;
  const int part = static_cast<int>(blockIdx.x) / size, begin = shares.begin(), end = shares.end();
  // Up to kThreads outputs at a time, one per thread.
#pragma unroll 1
  for (int i = begin + tid; i < end; i += C::kThreads) {
    const int head = i / D;
    const OutputSum x = shares.sum(i);
    if (a.parts == 1) {
      write_output<C>(p, sequence, kv_head * gqa_group + head, i % D, x.m, x.l, x.o);
    } else {
      __stcg(&partials[part].o[head][i % D], x.o);
      // Blocks that share a head write the same numbers.
      if (i % D == 0 || i == begin) __stcg(&partials[part].m[head], x.m), __stcg(&partials[part].l[head], x.l);
    }
  }
  if (a.parts == 1) return;
  if (!last_to_arrive(arrivals + item * C::kMaxCluster + rank, a.parts, shared.last_arriver)) return;
#pragma unroll 1
  for (int i = begin + tid; i < end; i += C::kThreads) {
    const OutputSum x = sum_of_parts<C>(partials, a.parts, i / D, i % D);
    write_output<C>(p, sequence, kv_head * gqa_group + i / D, i % D, x.m, x.l, x.o);
  }
#endif
}

}  // namespace oscar::kernels
