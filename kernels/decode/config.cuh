// Sizes of the decode kernels for one head size, number of head tiles and layout.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/decode/band_codes.cuh"
#include "kernels/decode/memory_plan.h"
#include "kernels/decode/uniform_codes.cuh"

namespace oscar::kernels {

// kCluster: for the cluster kernel, and for the streaming kernel where a multiprocessor has at most one item, one block
// of 16 warps per multiprocessor if the registers allow; else for the streaming kernel two blocks of 8. With many
// registers: one block of 8, or of 12 for `blocks` with two head tiles, whose query is in shared memory. kPositions:
// logits depend on the position of the key (phase_logits.cuh). It is a separate kernel, because the branch and its
// registers would cost the others up to a fifth. kParts: for the parts kernel, which has the cluster kernel's block
// size. kShare: 2, half the warps, for devices on which a block may have less shared memory, and for wide pages of head
// size 512; 4, a quarter, for both. Where registers suffice, twice as many blocks of half the warps are resident, each
// of which takes one item.
template <int D_, int NT_, bool kBlocks, bool kPositions = false, bool kCluster = false, bool kParts = false,
          int kShare = 1>
struct DecodeConfig {
  static constexpr int D = D_, NT = NT_, kHeads = 8 * NT_;
  using Cluster = DecodeConfig<D, NT, kBlocks, kPositions, true>;
  using Parts = DecodeConfig<D, NT, kBlocks, kPositions, true, true>;
  using Half = DecodeConfig<D, NT, kBlocks, kPositions, false, false, 2 * kShare>;
  static constexpr bool kUniform = !kBlocks;
  using Codes = std::conditional_t<kBlocks, BandCodes<D, NT, kPositions>, UniformCodes<D, NT, kParts>>;
  static constexpr bool kManyRegisters = NT == 2 || D >= 256;  // 8 or 12 warps per multiprocessor, else 16
  static constexpr bool kTwelve = kBlocks && NT == 2 && D == 128;
  // Shapes that do not fit 99 KiB. Uniform pages of one head tile are always small enough.
  static constexpr bool kHasHalf =
      !kCluster && (D == 512 ? kShare < 4 : kShare < 2 && (kTwelve || (D == 256 && (kBlocks || NT == 2))));
  static constexpr bool kHasSmall = !kManyRegisters && !kCluster && kShare == 1;
  static constexpr bool kNotHopper = kManyRegisters && kShare > (D == 512 ? 2 : 1);  // blocks of more warps fit Hopper
  static constexpr int kWarps = (kTwelve ? 12 : kCluster && !kManyRegisters ? 16 : 8) / kShare;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocksPerSm = kManyRegisters || kCluster ? 1 : 2 * kShare;
  static constexpr int kMaxSlots = 3;           // ring slots of a warp
  static constexpr int kMergeRow = D + 4 * NT;  // floats; the padding puts the heads of a store into different banks
  static constexpr int kMergeBytes = kWarps * kHeads * (kMergeRow + 2) * 4;
  static constexpr int kScratchBytes = kWarps * Codes::kScratchBytes + Codes::kItemBytes;
  static constexpr int kMaxCluster = 16;
  // Cluster kernel: the data that blocks of a cluster send each other: outputs, m and l.
  static constexpr int receive_bytes(int gqa_group) {
    return 4 * (gqa_group * D + 2 * kMaxCluster) + 2 * 4 * kMaxCluster * kHeads;
  }
};

template <class C>
struct DecodeShared {
  std::uint64_t barriers[C::kWarps * C::kMaxSlots];
  std::int32_t window_pages[C::kWarps][32];
  int last_arriver;
};

// Shared memory of merge_parts(): two floats per part and head, two per head, and four per thread.
constexpr int merge_parts_bytes(int parts, int heads, int threads, int head_dim) {
  return 8 * heads * (parts + 1) + 16 * std::max(threads, heads * head_dim / 4);
}

// Needs of a block. declared: bytes that the kernel declares; extra: dynamic bytes beside rings and scratch.
template <class C>
constexpr BlockMemory block_memory(int slot_bytes, int multiprocessors, std::size_t declared, int extra) {
  const int parts = merge_parts_bytes(multiprocessors * C::kBlocksPerSm, C::kHeads, C::kThreads, C::D);
  return {C::kWarps,
          slot_bytes,
          C::kMaxSlots,
          std::max(C::kMergeBytes, parts),
          C::kScratchBytes + extra,
          static_cast<int>(declared)};
}

}  // namespace oscar::kernels
