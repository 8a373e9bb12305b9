// Tiles of far_pair_sums_hopper.cu in shared memory, and the warps that copy them ahead of the warps that multiply.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/far_pairs/far_pair_sums.h"
#include "kernels/far_pairs/tensor_ops.cuh"
#include "kernels/far_pairs/wgmma.cuh"

namespace oscar::kernels::hopper {

constexpr int kGroups = 2, kGroupQueries = 64, kTileKeys = 64;  // per block; per warpgroup; per tile
constexpr int kBlockQueries = kGroups * kGroupQueries, kMultipliers = 128 * kGroups, kCopiers = 128,
              kAll = kMultipliers + kCopiers;
constexpr int kBuffers = 3;

template <int D>
struct Buffers {
  std::uint16_t q[D / 64][kBlockQueries][64];
  std::uint16_t k[kBuffers][D / 64][kTileKeys][64], high[kBuffers][D / 64][kTileKeys][64],
      low[kBuffers][D / 64][kTileKeys][64];
  float norm[kBuffers][kTileKeys];
  std::uint64_t full[kBuffers], empty[kBuffers];
};

// Copies rows [first, first + kRows) of D numbers, swizzled; zeros from row `end` on. kCopiers threads call it, this
// one is number `thread`: it copies one part of each kStep-th row.
template <int D, int kRows>
__device__ __forceinline__ void copy_swizzled(std::uint16_t (*to)[kRows][64], const std::uint16_t* from,
                                              std::int64_t stride, int first, int end, int thread) {
  constexpr int kStep = kCopiers / (D / 8);
  const int r = thread / (D / 8), c = thread % (D / 8);
  const std::uint16_t* source = from + (first + r) * stride + c * 8;
  std::uint16_t* target = &to[c / 8][r][(c % 8 ^ r % 8) * 8];
#pragma unroll
  for (int n = 0; n < kRows / kStep; ++n, source += kStep * stride) {
    const bool live = first + r + n * kStep < end;
    far::copy16(target + n * kStep * 64, live ? source : from, live);
  }
}

// Tiles in reading order: only keys for the logarithms, then all data of the tiles with pairs outside the windows.
struct Course {
  int sums, begin, end;  // tiles of the first pass; range of the second
  __device__ __forceinline__ Course(const FarPairsParams& p, int last_query)
      : sums(last_query / kTileKeys + 1), begin(p.sink / kTileKeys), end((last_query - p.recent) / kTileKeys + 1) {}
};

template <int D>
__device__ __forceinline__ void copy_tiles(const FarPairsParams& p, Buffers<D>& s, int head, const Course& course) {
  const int thread = threadIdx.x - kMultipliers, steps = course.sums + course.end - course.begin;
  const std::uint16_t* keys = p.k + head / (p.query_heads / p.kv_heads) * D;
  const std::int64_t plane = static_cast<std::int64_t>(head) * p.tokens;
  for (int step = 0; step < steps; ++step) {
    const int b = step % kBuffers;
    if (step >= kBuffers) wait_for(&s.empty[b], (step / kBuffers - 1) % 2);
    const bool far = step >= course.sums;
    const int first = (far ? step - course.sums + course.begin : step) * kTileKeys;
    copy_swizzled<D, kTileKeys>(s.k[b], keys, p.k_stride, first, p.tokens, thread);
    if (far) {
      copy_swizzled<D, kTileKeys>(s.high[b], p.u_high + plane * D, D, first, p.tokens, thread);
      copy_swizzled<D, kTileKeys>(s.low[b], p.u_low + plane * D, D, first, p.tokens, thread);
      if (const int i = thread; i < kTileKeys) {
        copy4(&s.norm[b][i], p.u_norm + plane + (first + i < p.tokens ? first + i : 0), first + i < p.tokens);
      }
    }
    far::commit();
    if (step > 0) {
      far::wait<1>();
      fence_writes();
      arrive(&s.full[(step - 1) % kBuffers]);
    }
  }
  far::wait<0>();
  fence_writes();
  arrive(&s.full[(steps - 1) % kBuffers]);
}

}  // namespace oscar::kernels::hopper
