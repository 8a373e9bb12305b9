// A warp's private ring of shared-memory slots, filled by bulk copies (Hopper) or cp.async (sm_80). One warp is its own
// producer and consumer, so the main loop needs no block barrier.
#pragma once

#include <cstdint>

#include "kernels/decode/shared_memory.cuh"

namespace oscar::kernels {

// A part of a slot's content: `bytes` (a multiple of 16) from global memory to a shared address.
struct CopyPart {
  std::uint32_t destination = 0;
  const void* source = nullptr;
  int bytes = 0;
};

#if __CUDA_ARCH__ >= 900

struct CopyRing {
  std::uint32_t barrier;  // shared address of this warp's [depth] mbarriers

  // Every lane calls it once before use; the caller orders it with __syncwarp() and the fence below.
  __device__ __forceinline__ void init(int lane, int depth) const {
    if (lane == 0) {
      for (int i = 0; i < depth; ++i) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier + 8 * i));
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
  }
  // The same for a known depth, within one thread block.
  template <int kDepth>
  __device__ __forceinline__ void init(int lane) const {
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kDepth; ++i)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier + 8 * i) : "memory");
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
  }
  // Fills the slot; completes on the slot's barrier. row: data that many warps read; 0 bytes if there is none. more: a
  // third part, as data.
  __device__ __forceinline__ void copy(int lane, int slot, const CopyPart& data, const CopyPart& row = {},
                                       const CopyPart& more = {}) const {
    if (lane == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier + 8 * slot),
                   "r"(data.bytes + row.bytes + more.bytes)
                   : "memory");
      const auto once = [&](const CopyPart& part) {
        if (part.bytes == 0) return;  // a layout's pages may have no codes
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
            "%4;" ::"r"(part.destination),
            "l"(part.source), "r"(part.bytes), "r"(barrier + 8 * slot), "l"(0x12F0000000000000ULL)  // evict first
            : "memory");
      };
      once(data), once(more);
      if (row.bytes > 0) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         row.destination),
                     "l"(row.source), "r"(row.bytes), "r"(barrier + 8 * slot)
                     : "memory");
      }
    }
  }
  __device__ __forceinline__ void commit() const {}
  // Waits until the copy of the given phase into `slot` has landed.
  __device__ __forceinline__ void wait(int slot, int phase, int) const {
    std::uint32_t done = 0;
    while (!done) {
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done)
                   : "r"(barrier + 8 * slot), "r"(phase)
                   : "memory");
    }
  }
};

#else

struct CopyRing {
  std::uint32_t barrier;

  __device__ __forceinline__ void init(int, int) const {}
  template <int kDepth>
  __device__ __forceinline__ void init(int) const {}
  __device__ __forceinline__ void copy(int lane, int, const CopyPart& data, const CopyPart& row = {},
                                       const CopyPart& more = {}) const {
    for (const CopyPart& part : {data, row, more}) {
      const char* from = static_cast<const char*>(part.source);
      for (int i = 16 * lane; i < part.bytes; i += 512) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(part.destination + i), "l"(from + i) : "memory");
      }
    }
  }
  __device__ __forceinline__ void commit() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // Copies land in order; `depth - 1` groups may still be in flight.
  __device__ __forceinline__ void wait(int, int, int depth) const {
    if (depth <= 1) asm volatile("cp.async.wait_group 0;" ::: "memory");
    if (depth == 2) asm volatile("cp.async.wait_group 1;" ::: "memory");
    if (depth == 3) asm volatile("cp.async.wait_group 2;" ::: "memory");
    if (depth == 4) asm volatile("cp.async.wait_group 3;" ::: "memory");
    if (depth >= 5) asm volatile("cp.async.wait_group 4;" ::: "memory");
    __syncwarp();
  }
};

#endif

}  // namespace oscar::kernels
