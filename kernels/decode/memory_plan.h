// How a thread block of the decode kernels uses a device's shared memory. Devices differ: a block may have 227 KiB on
// compute capability 9.0, 163 KiB on 8.0 and 99 KiB on 8.6, 8.9 and 12.0. Plain C++, so that a test without a GPU can
// ask for every device.
#pragma once

#include <algorithm>

namespace oscar::kernels {

// Bytes, as the CUDA runtime reports them.
struct SharedMemoryLimits {
  int per_multiprocessor = 0;  // cudaDevAttrMaxSharedMemoryPerMultiprocessor
  int per_block = 0;           // cudaDevAttrMaxSharedMemoryPerBlockOptin
  int reserved_per_block = 0;  // cudaDevAttrReservedSharedMemoryPerBlock
};

// What a block of one kernel needs, in bytes. The merge uses the memory of the rings.
struct BlockMemory {
  int warps = 0;
  int slot_bytes = 0;   // of one slot of a warp's ring
  int most_slots = 0;   // of a warp
  int merge_bytes = 0;  // least size of the rings
  int other_bytes = 0;  // dynamic memory that follows the rings
  int fixed_bytes = 0;  // memory that the kernel declares
};

struct MemoryPlan {
  int slots = 0;       // of a warp's ring; 0: the block does not fit the device
  int pool_bytes = 0;  // the rings, and the merge over them
  int bytes = 0;       // dynamic shared memory of the launch
  int blocks = 0;      // resident blocks on a multiprocessor

  constexpr bool fits() const { return slots > 0; }
};

// The most resident blocks, up to `blocks`, that leave each warp a slot; then the most slots.
constexpr MemoryPlan plan_memory(const BlockMemory& need, int blocks, const SharedMemoryLimits& device) {
  for (; blocks > 0; --blocks) {
    const int block = std::min(device.per_multiprocessor / blocks - device.reserved_per_block, device.per_block) -
                      (need.fixed_bytes + 127) / 128 * 128;
    const int rings = block - need.other_bytes;
    const int slots = std::min(rings / (need.warps * need.slot_bytes), need.most_slots);
    if (slots < 1 || rings < need.merge_bytes) continue;
    const int pool = std::max(need.warps * slots * need.slot_bytes, need.merge_bytes);
    return {slots, pool, pool + need.other_bytes, blocks};
  }
  return {};
}

}  // namespace oscar::kernels
