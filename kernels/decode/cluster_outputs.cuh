// The merge of the cluster kernel: blocks of a cluster through distributed shared memory, clusters of an item through
// global memory. Hopper.
#pragma once

#include "kernels/decode/merge.cuh"

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
// Only announces that this thread has arrived: no fence.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores into the shared memory of another block of the cluster, at the same address as in this block.
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

// One output before its division: sum of the weights, and weighted sum of the values, both relative to the reference m.
struct OutputSum {
  float m = kNoReference, l = 0.0f, o = 0.0f;
};

// Block r of a cluster adds up slice r of the outputs, as received from all blocks.
template <class C>
struct ClusterOutputs {
  static constexpr int D = C::D;
  int rank, size, outputs, slice;
  float *o, *m, *l;  // received: [size][slice], [size][kHeads], [size][kHeads]

  // to: C::receive_bytes(gqa_group) bytes of shared memory.
  __device__ __forceinline__ ClusterOutputs(std::uint8_t* to, int gqa_group, int rank_, int size_)
      : rank(rank_), size(size_), outputs(gqa_group * D) {
    slice = ((outputs + size - 1) / size + 1) & ~1;
    o = reinterpret_cast<float*>(to);
    m = o + outputs + 2 * C::kMaxCluster;
    l = m + C::kMaxCluster * C::kHeads;
  }
  __device__ __forceinline__ int begin() const { return rank * slice; }
  __device__ __forceinline__ int end() const { return min(outputs, begin() + slice); }

  // Sends each block its share; every block must have started. The data is there after a cluster barrier.
  __device__ __forceinline__ void send_shares(const BlockMerge<C>& merge, int gqa_group, int warp, int lane) const {
    const std::uint32_t to_o = shared_address(o + rank * slice), to_m = shared_address(m + rank * C::kHeads),
                        to_l = shared_address(l + rank * C::kHeads);
#pragma unroll 1
    for (int i = 2 * threadIdx.x; i < outputs; i += 2 * C::kThreads) {
      const int head = i / D, owner = i / slice;
      send(to_o + 4 * (i - owner * slice), owner, merge.output(head, i % D));
    }
    // A head belongs to the blocks from its first output's block to its last output's block. The last warps have the
    // fewest outputs to send.
#pragma unroll 1
    for (int head = C::kWarps - 1 - warp; head < gqa_group; head += C::kWarps) {
      const float head_m = merge.reference(head), head_l = merge.sum(head);
      const int owner = head * D / slice + lane;
      if (owner <= (head * D + D - 1) / slice)
        send(to_m + 4 * head, owner, head_m), send(to_l + 4 * head, owner, head_l);
    }
  }

  // Output i of this block's share, summed over the blocks in their order.
  __device__ __forceinline__ OutputSum sum(int i) const {
    const int head = i / D;
    OutputSum x;
#pragma unroll 4
    for (int r = 0; r < size; ++r) x.m = fmaxf(x.m, m[r * C::kHeads + head]);
#pragma unroll 4
    for (int r = 0; r < size; ++r) {
      const float f = exp2_approx(m[r * C::kHeads + head] - x.m);
      x.l = fmaf(l[r * C::kHeads + head], f, x.l);
      x.o = fmaf(o[r * slice + i - begin()], f, x.o);
    }
    return x;
  }
};

// One output over the clusters that share its item, in their order. The reference is updated while reading, so the
// loads of several parts overlap.
template <class C>
__device__ __forceinline__ OutputSum sum_of_parts(const Partial<C>* partials, int parts, int head, int channel) {
  OutputSum x;
#pragma unroll 4
  for (int r = 0; r < parts; ++r) {
    const float part_m = __ldcg(&partials[r].m[head]), part_l = __ldcg(&partials[r].l[head]),
                part_o = __ldcg(&partials[r].o[head][channel]);
    const float next = fmaxf(x.m, part_m), old = exp2_approx(x.m - next), f = exp2_approx(part_m - next);
    x.m = next;
    x.l = fmaf(part_l, f, x.l * old);
    x.o = fmaf(part_o, f, x.o * old);
  }
  return x;
}

#endif

}  // namespace oscar::kernels
