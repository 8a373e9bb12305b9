// The kernel for the fewest (sequence, KV head) items. A fixed number of blocks on all multiprocessors shares each
// item, without clusters, which do not fit all multiprocessors. Blocks meet in global memory, but without fences,
// counters or flags (part_exchange.cuh). The last block of an item adds up the sums of the others in order, so the
// result does not depend on timing. It waits only for blocks with lower indices, which start before it.
#pragma once

#include "kernels/decode/part_exchange.cuh"
#include "kernels/decode/warp_loop.cuh"

namespace oscar::kernels {

// Reads all parameters of a launch at once; otherwise a warp waits for memory at each first read.
__device__ __forceinline__ std::uint32_t parameters_read(const DecodeLaunch& a) {
  const std::uint32_t* words = reinterpret_cast<const std::uint32_t*>(&a);
  std::uint32_t any = 0;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(DecodeLaunch) / 4); i += 16) any |= words[i];
  return any;
}

// Grid: (parts, KV heads, batch).
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm) parts_kernel(const __grid_constant__ DecodeLaunch a) {
  let_next_start();
  const PagedDecodeParams& p = a.p;
  extern __shared__ __align__(128) std::uint8_t pool[];
  __shared__ PartsShared<C> shared;

  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int sequence = blockIdx.z, kv_head = blockIdx.y, gqa_group = a.gqa_group;
  const int part = static_cast<int>(blockIdx.x), parts = static_cast<int>(gridDim.x);
  // Neighboring pages go to different blocks.
  const int index = warp * parts + part, stride = C::kWarps * parts;

  const int length = __ldg(p.lengths + sequence);
  const std::int32_t* table = p.page_table + static_cast<long long>(sequence) * p.max_pages;
  PageIds ids;
  WindowPages windows;
  windows.load(p, sequence, lane);
  if (p.sliding_window == 0 && p.chunk == 0) {
    // The body begins with page 0 for any length, so there is no need to wait for the length.
    ids.id = index + lane * stride < p.max_pages ? __ldg(table + index + lane * stride) : 0;
  }
  store_shared_4(shared_address(&shared.any_parameter), parameters_read(a));  // never read; it forces the read
  const CopyRing ring{shared_address(&shared.barriers[warp * C::kMaxSlots])};
  ring.init<C::kMaxSlots>(lane);
  typename C::Codes::Query query;
  const std::uint32_t* queries = written_queries<C>(p, sequence, kv_head, gqa_group);
  query.load(a, queries, kv_head, warp, lane);
  const SequencePlan plan = SequencePlan::make(p, length);
  if (length <= 0) return;  // all parts return
  const WarpShare share = WarpShare::make(plan.page_begin, plan.page_end, 0, plan.window_tiles(), index, stride);
  if (p.sliding_window != 0 || p.chunk != 0) ids.load(table, share, 0, lane);
  const int warp_bytes = a.slots * a.slot_bytes;  // the ring, then the warp's results at the end
  RingPosition at{shared_address(pool) + warp * warp_bytes};
  std::uint8_t* item_shared = pool + a.pool_bytes;
  SharedAddress scratch = shared_address(item_shared) + C::Codes::kItemBytes + warp * C::Codes::kScratchBytes;
  keep(at.slots), keep(scratch);
  const int item = sequence * p.kv_heads + kv_head;
  PartSums<C>* sums = static_cast<PartSums<C>*>(a.exchange) + item * parts;
  WarpWork<C> work;
  work.run(a, plan, sequence, kv_head, share, ids, windows, shared, queries, query, ring, at, scratch, item_shared,
           warp, lane, [&] {
             if (parts > 1 && warp == C::kWarps - 1) sums[part].read_ahead(gqa_group, lane);
           });
  const WarpMerge<C> merge(shared, pool, warp_bytes);
  merge.put(a, work.state, gqa_group, warp, lane);
  const SharedAddress factors = shared_address(shared.factors[warp]);
  merge.each_sum(gqa_group, warp, lane, factors, [&](int head, int channel, float m, float l, float2 o) {
    if (part < parts - 1) {
      sums[part].send(head, channel, lane, m, l, o);
      return;
    }
    if (parts > 1) join_parts<C>(sums, parts - 1, head, channel, lane, factors, m, l, o);
    write_output<C>(p, sequence, kv_head * gqa_group + head, channel, m, l, o);
  });
}

}  // namespace oscar::kernels
