// The planes of a page side as compile-time shapes, so that finding the place of a code needs no divisions, and the
// words of a page that threads assemble from codes in shared memory.
#pragma once

#include "kernels/common/code_place.h"
#include "kernels/common/page_layout.h"

namespace oscar::kernels {

// Calls f.template operator()<channels, width>(index) for each plane of a side with head size D and one quantization
// group.
template <int D, class F>
__device__ __forceinline__ void for_each_plane(const SideLayout& side, F&& f) {
  if (side.params != ParamKind::kScaleByte) return f.template operator()<D, 2>(0);
  for (int b = 0; b < side.planes; ++b) {
    if (side.plane[b].width == 4) {
      f.template operator()<D / 4, 4>(b);
    } else if (side.plane[b].width == 2) {
      f.template operator()<D / 4, 2>(b);
    } else {
      f.template operator()<D / 4, 1>(b);
    }
  }
}

// Writes codes [64][D] of tokens [first_slot, first_slot + count) into a page; bits of other tokens are kept. All
// threads of the block call it.
template <int D>
__device__ __forceinline__ void write_codes(const SideLayout& side, bool value_side, int first_slot, int count,
                                            const std::uint8_t (*codes)[D], std::uint8_t* page) {
  for_each_plane<D>(side, [&]<int kChannels, int kWidth>(int b) {
    constexpr PlaneLayout kPlane{0, kChannels, kWidth, 0, 0};
    constexpr std::uint32_t kOnes = (1u << kWidth) - 1u;
    const PlaneLayout& plane = side.plane[b];
    std::uint32_t* words = reinterpret_cast<std::uint32_t*>(page + plane.offset);
    for (int index = static_cast<int>(threadIdx.x); index < kPlane.bytes() / 4; index += static_cast<int>(blockDim.x)) {
      std::uint32_t word = 0, mine = 0;
#pragma unroll
      for (int f = 0; f < 32 / kWidth; ++f) {
        const CodePlace at = value_side ? code_at(kPlane, true, index, f) : code_at(kPlane, false, index, f);
        if (at.token < first_slot || at.token >= first_slot + count) continue;
        word |= static_cast<std::uint32_t>(codes[at.token][plane.first_channel + at.channel]) << (kWidth * f);
        mine |= kOnes << (kWidth * f);
      }
      if (mine == 0) continue;
      words[index] = mine == 0xffffffffu ? word : (words[index] & ~mine) | word;
    }
  });
}

}  // namespace oscar::kernels
