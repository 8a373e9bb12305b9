// The rule by which a decode kernel divides shared memory, for devices with other sizes. Needs no GPU and no CUDA.
#include "kernels/decode/memory_plan.h"

#include <gtest/gtest.h>

namespace oscar::kernels {
namespace {

constexpr int kKib = 1024;
// Compute capability 9.0, 8.0 and 8.6: CUDA C++ Programming Guide, table of technical specifications.
constexpr SharedMemoryLimits k90{228 * kKib, 227 * kKib, kKib}, k80{164 * kKib, 163 * kKib, kKib},
    k86{100 * kKib, 99 * kKib, kKib};

// 8 warps, slots of 4 KiB, at most three of them.
BlockMemory small_block() { return {.warps = 8, .slot_bytes = 4 * kKib, .most_slots = 3}; }

TEST(MemoryPlan, FillsTheShareOfEachResidentBlock) {
  const MemoryPlan hopper = plan_memory(small_block(), 2, k90);  // 113 KiB for each block
  EXPECT_EQ(hopper.blocks, 2);
  EXPECT_EQ(hopper.slots, 3);
  EXPECT_EQ(hopper.bytes, 96 * kKib);
  const MemoryPlan ampere = plan_memory(small_block(), 2, k80);  // 81 KiB
  EXPECT_EQ(ampere.blocks, 2);
  EXPECT_EQ(ampere.slots, 2);
  const MemoryPlan small = plan_memory(small_block(), 2, k86);  // 49 KiB
  EXPECT_EQ(small.blocks, 2);
  EXPECT_EQ(small.slots, 1);
}

TEST(MemoryPlan, FewerResidentBlocksWhereOneSlotDoesNotFit) {
  BlockMemory need = small_block();
  need.slot_bytes = 8 * kKib;  // 64 KiB for one slot of each warp
  EXPECT_EQ(plan_memory(need, 2, k90).blocks, 2);
  EXPECT_EQ(plan_memory(need, 2, k80).blocks, 2);
  const MemoryPlan plan = plan_memory(need, 2, k86);
  EXPECT_EQ(plan.blocks, 1);
  EXPECT_EQ(plan.slots, 1);
  EXPECT_EQ(plan.bytes, 64 * kKib);
}

TEST(MemoryPlan, SaysWhatDoesNotFit) {
  BlockMemory need = small_block();
  need.slot_bytes = 16 * kKib;  // 128 KiB
  EXPECT_TRUE(plan_memory(need, 1, k80).fits());
  EXPECT_FALSE(plan_memory(need, 1, k86).fits());
  need = small_block();
  need.merge_bytes = 99 * kKib;
  EXPECT_TRUE(plan_memory(need, 1, k86).fits());
  EXPECT_EQ(plan_memory(need, 1, k86).pool_bytes, 99 * kKib);
  need.other_bytes = 1;
  EXPECT_FALSE(plan_memory(need, 1, k86).fits());
  need.other_bytes = 0, need.fixed_bytes = 1;  // the compiler places dynamic memory at a multiple of 128
  EXPECT_FALSE(plan_memory(need, 1, k86).fits());
}

// The device's limit for a block decides where it is below the multiprocessor's memory.
TEST(MemoryPlan, KeepsTheLimitOfABlock) {
  SharedMemoryLimits device = k90;
  device.per_block = 48 * kKib;
  EXPECT_EQ(plan_memory(small_block(), 1, device).bytes, 32 * kKib);
}

}  // namespace
}  // namespace oscar::kernels
