// Every shape of the decode kernels fits the shared memory of every supported device. Needs no GPU.
#include <gtest/gtest.h>

#include <array>

#include "kernels/decode/config.cuh"
#include "kernels/decode/page_queries.h"
#include "kernels/decode/warp_merge.cuh"

namespace oscar::kernels {
namespace {

constexpr int kKib = 1024;
constexpr SharedMemoryLimits k90{228 * kKib, 227 * kKib, kKib}, k80{164 * kKib, 163 * kKib, kKib},
    k86{100 * kKib, 99 * kKib, kKib};
constexpr std::array<std::array<std::uint8_t, 4>, 5> kWidths = {
    {{1, 1, 1, 1}, {4, 2, 1, 1}, {2, 2, 2, 2}, {4, 4, 2, 2}, {4, 4, 4, 4}}};

template <class C>
MemoryPlan stream_plan(int slot_bytes, int multiprocessors, const SharedMemoryLimits& device) {
  return plan_memory(block_memory<C>(slot_bytes, multiprocessors, sizeof(DecodeShared<C>), 0), C::kBlocksPerSm, device);
}

// Calls f.operator()<C>(slot_bytes) for each configuration and page size.
template <class F>
void each_shape(F&& f) {
  const auto of_heads = [&]<int D, int NT>() {
    const int window = window_tile_bytes(D) / 2;
    if constexpr (D < 512) f.template operator()<DecodeConfig<D, NT, false>>(std::max(uniform_page(D).bytes(), window));
    for (const auto& widths : kWidths) {
      const SideLayout key = band_side(D, widths.data(), 0);
      const int slot = std::max(PageLayout{key, band_side(D, widths.data(), key.end())}.bytes(), window);
      f.template operator()<DecodeConfig<D, NT, true>>(slot);
      f.template operator()<DecodeConfig<D, NT, true, true>>(slot + 8 * NT * kPageQueryBytes);
    }
  };
  of_heads.template operator()<64, 1>(), of_heads.template operator()<64, 2>();
  of_heads.template operator()<128, 1>(), of_heads.template operator()<128, 2>();
  of_heads.template operator()<256, 1>(), of_heads.template operator()<256, 2>();
  of_heads.template operator()<512, 1>();
}

// The plan of the streaming kernel with the most warps that fit.
template <class C>
MemoryPlan fitting_plan(int slot_bytes, int multiprocessors, const SharedMemoryLimits& device, int& halvings) {
  const MemoryPlan plan = stream_plan<C>(slot_bytes, multiprocessors, device);
  if constexpr (C::kHasHalf) {
    if (!plan.fits()) return fitting_plan<typename C::Half>(slot_bytes, multiprocessors, device, ++halvings);
  }
  // Code for 90a has this kernel.
  EXPECT_TRUE(!C::kNotHopper || device.per_block < k90.per_block) << "D " << C::D << " slot " << slot_bytes;
  return plan;
}

// Every shape fits a block of 99 KiB, some with half the warps, the widest pages with a quarter. Cards of 8.6, 8.9
// and 12.0 have up to 188 multiprocessors, whose number bounds the parts of an item.
TEST(DecodeMemory, EveryShapeFitsEveryDevice) {
  for (const auto& [multiprocessors, device] : {std::pair{188, k86}, std::pair{108, k80}, std::pair{132, k90}}) {
    int halves = 0;
    each_shape([&, multiprocessors = multiprocessors, &device = device]<class C>(int slot_bytes) {
      int halvings = 0;
      const MemoryPlan plan = fitting_plan<C>(slot_bytes, multiprocessors, device, halvings);
      if (C::D < 512) halves += halvings;
      EXPECT_TRUE(plan.fits()) << "D " << C::D << " NT " << C::NT << " slot " << slot_bytes;
      EXPECT_LE(plan.bytes + static_cast<int>(sizeof(DecodeShared<C>)), device.per_block);
    });
    EXPECT_EQ(halves > 0, device.per_block < k90.per_block);
  }
}

// Smaller devices cost Hopper nothing: as many resident blocks as planned, all warps, and the cluster and parts
// kernels.
TEST(DecodeMemory, HopperKeepsItsBlocks) {
  each_shape([&]<class C>(int slot_bytes) {
    if (C::D == 512 && slot_bytes > 22 * kKib) return;  // codes of more than 2.5 bits
    const MemoryPlan plan = stream_plan<C>(slot_bytes, 132, k90);
    EXPECT_EQ(plan.blocks, C::kBlocksPerSm) << "D " << C::D << " NT " << C::NT << " slot " << slot_bytes;
    EXPECT_EQ(plan.pool_bytes, std::max(C::kWarps * plan.slots * slot_bytes, C::kMergeBytes));
    using Cluster = typename C::Cluster;
    const int extra = Cluster::receive_bytes(C::kHeads);
    EXPECT_TRUE(
        plan_memory(block_memory<Cluster>(slot_bytes, 132, sizeof(DecodeShared<Cluster>), extra), 1, k90).fits());
    if constexpr (C::NT == 1 && C::D <= 128) {
      using Parts = typename C::Parts;
      EXPECT_TRUE(plan_memory(block_memory<Parts>(slot_bytes, 132, sizeof(PartsShared<Parts>), 0), 1, k90).fits());
    }
  });
}

}  // namespace
}  // namespace oscar::kernels
