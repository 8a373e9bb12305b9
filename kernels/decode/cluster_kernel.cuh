// The cluster kernel (Hopper), for few (sequence, KV head) items: each is shared by a fixed number of clusters of
// blocks. Against the streaming kernel it has no schedule to compute, page ids are read beside the lengths and not
// after them, and the blocks' results meet in distributed shared memory: every block sends each other block of its
// cluster a share of the outputs; one cluster barrier later each block adds what it was sent, in block order. Where
// several clusters share an item, their blocks of equal rank meet in global memory, and the one arriving last adds the
// parts, in order: the result does not depend on timing.
#pragma once

#include "kernels/decode/merge.cuh"
#include "kernels/decode/warp_loop.cuh"

namespace oscar::kernels {

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ std::uint32_t cluster_rank() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x));
  return x;
}
__device__ __forceinline__ std::uint32_t cluster_size() {
  std::uint32_t x;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(x));
  return x;
}
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Says only that this thread has come here: no fence.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores into the shared memory of another block of the cluster, at the same address as here.
__device__ __forceinline__ void send(std::uint32_t address, std::uint32_t rank, float x) {
  asm volatile(
      "{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2; }" ::"r"(address),
      "r"(rank), "f"(x)
      : "memory");
}
__device__ __forceinline__ void send(std::uint32_t address, std::uint32_t rank, float2 x) {
  asm volatile(
      "{ .reg .u32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.v2.f32 [there], {%2, %3}; }" ::"r"(
          address),
      "r"(rank), "f"(x.x), "f"(x.y)
      : "memory");
}

#endif

// Grid: (parts * cluster size, KV heads, batch).
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kBlocksPerSm) cluster_kernel(const __grid_constant__ DecodeLaunch a) {
#if __CUDA_ARCH__ >= 900
  const DecodeAttentionParams& p = a.p;
  constexpr int D = C::D;
  extern __shared__ __align__(128) std::uint8_t pool[];
  __shared__ DecodeShared<C> shared;

  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int sequence = blockIdx.z, kv_head = blockIdx.y, group = a.group;
  const int rank = static_cast<int>(cluster_rank()), size = static_cast<int>(cluster_size());
  // Neighbouring pages go to different blocks.
  const int index = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x),
            stride = C::kWarps * static_cast<int>(gridDim.x);

  const int length = __ldg(p.lengths + sequence);
  const std::int32_t* table = p.page_table + static_cast<long long>(sequence) * p.max_pages;
  PageIds ids;
  WindowPages windows;
  windows.load(p, sequence, lane);
  if (p.sliding_window == 0) {
    // The body begins with page 0 whatever the length: no need to wait for it.
    ids.id = index + lane * stride < p.max_pages ? __ldg(table + index + lane * stride) : 0;
  }
  typename C::Codes::Query query;
  query.load(a,
             static_cast<const std::uint32_t*>(p.q) +
                 (static_cast<long long>(sequence) * p.query_heads + kv_head * group) * (D / 2),
             kv_head, warp, lane);
  const CopyRing ring{shared_address(&shared.barriers[warp * C::kMaxSlots])};
  ring.init(lane, a.slots);
  const SequencePlan plan = SequencePlan::make(p, length);
  if (length <= 0) return;  // the whole cluster
  const WarpShare share = WarpShare::make(plan.page_begin, plan.page_end, 0, plan.window_tiles(), index, stride);
  if (p.sliding_window != 0) ids.load(table, share, 0, lane);
  RingPosition at{shared_address(pool) + warp * a.slots * a.slot_bytes};
  std::uint8_t* item_shared = pool + a.pool_bytes;
  SharedAddress scratch = shared_address(item_shared) + C::Codes::kItemBytes + warp * C::Codes::kScratchBytes;
  keep(at.slots), keep(scratch);
  WarpWork<C> work;
  // The first half of the cluster barrier says that a block has begun: waited for before the first store into it.
  work.run(a, plan, sequence, kv_head, share, ids, windows, shared, query, ring, at, scratch, item_shared, warp, lane,
           [] { cluster_arrive_relaxed(); });

  __syncthreads();
  const BlockMerge<C> merge(pool);
  merge.put(a, work.state, group, warp, lane);

  // Block r of a cluster adds up outputs [r, r + 1) slice.
  const int outputs = group * D, slice = ((outputs + size - 1) / size + 1) & ~1;
  float* received = reinterpret_cast<float*>(pool + a.pool_bytes + C::kScratchBytes);  // [size][slice]
  float* received_m = received + outputs + 2 * C::kMaxCluster;                         // [size][kHeads]
  float* received_l = received_m + C::kMaxCluster * C::kHeads;                         // [size][kHeads]
  const std::uint32_t to_o = shared_address(received + rank * slice),
                      to_m = shared_address(received_m + rank * C::kHeads),
                      to_l = shared_address(received_l + rank * C::kHeads);
  cluster_wait();
#pragma unroll 1
  for (int i = 2 * tid; i < outputs; i += 2 * C::kThreads) {
    const int head = i / D, owner = i / slice;
    send(to_o + 4 * (i - owner * slice), owner, merge.output(head, i % D));
  }
  // A head belongs to the blocks from the one of its first output to that of its last. The last warps have the fewest
  // outputs to send.
#pragma unroll 1
  for (int head = C::kWarps - 1 - warp; head < group; head += C::kWarps) {
    const float m = merge.reference(head), l = merge.sum(head);
    const int owner = head * D / slice + lane;
    if (owner <= (head * D + D - 1) / slice) send(to_m + 4 * head, owner, m), send(to_l + 4 * head, owner, l);
  }
  cluster_arrive();
  cluster_wait();
  const int begin = rank * slice, end = min(outputs, begin + slice);
  // Up to kThreads outputs at a time: one for each thread.
  int* arrivals = static_cast<int*>(p.workspace);
  const int item = sequence * p.kv_heads + kv_head;
  Partial<C>* partials =
      reinterpret_cast<Partial<C>*>(arrivals + arrival_counters(p.batch * p.kv_heads)) + item * a.parts;
  const int part = static_cast<int>(blockIdx.x) / size;
#pragma unroll 1
  for (int i = begin + tid; i < end; i += C::kThreads) {
    const int head = i / D;
    float m = kNoReference, l = 0.0f, o = 0.0f;
#pragma unroll 4
    for (int r = 0; r < size; ++r) m = fmaxf(m, received_m[r * C::kHeads + head]);
#pragma unroll 4
    for (int r = 0; r < size; ++r) {
      const float f = exp2_approx(received_m[r * C::kHeads + head] - m);
      l = fmaf(received_l[r * C::kHeads + head], f, l);
      o = fmaf(received[r * slice + i - begin], f, o);
    }
    if (a.parts == 1) {
      write_output<C>(p, sequence, kv_head * group + head, i % D, m, l, o);
    } else {
      __stcg(&partials[part].o[head][i % D], o);
      // Blocks that share a head write the same numbers.
      if (i % D == 0 || i == begin) __stcg(&partials[part].m[head], m), __stcg(&partials[part].l[head], l);
    }
  }
  if (a.parts == 1) return;
  __threadfence();
  __syncthreads();
  if (tid == 0) {
    int* arrived = arrivals + item * C::kMaxCluster + rank;
    shared.last_arriver = atomicAdd(arrived, 1) == a.parts - 1;
    if (shared.last_arriver) *arrived = 0;  // ready for the next launch
  }
  __syncthreads();
  if (!shared.last_arriver) return;
  __threadfence();
#pragma unroll 1
  for (int i = begin + tid; i < end; i += C::kThreads) {
    const int head = i / D;
    float m = kNoReference, l = 0.0f, o = 0.0f;
    // A running reference: the loads of several parts are under way together.
#pragma unroll 4
    for (int r = 0; r < a.parts; ++r) {
      const float part_m = __ldcg(&partials[r].m[head]), part_l = __ldcg(&partials[r].l[head]),
                  part_o = __ldcg(&partials[r].o[head][i % D]);
      const float next = fmaxf(m, part_m), old = exp2_approx(m - next), f = exp2_approx(part_m - next);
      m = next;
      l = fmaf(part_l, f, l * old);
      o = fmaf(part_o, f, o * old);
    }
    write_output<C>(p, sequence, kv_head * group + head, i % D, m, l, o);
  }
#endif
}

}  // namespace oscar::kernels
