// A walk over the planes of one side of a `blocks` page.
#pragma once

#include <cstdint>

namespace oscar::kernels {

// Calls f<width, rank>() for every plane, by falling width. widths: one byte per rank, 4, 2, 1, 0 in falling order. A
// plane can only be followed by its own width or smaller ones, so an equally wide next plane takes one test. Tests are
// the cost of this layout, because each one stops the warp. Testing in a fixed order at every block took a tenth of a
// page's time for widths 4-2-1-1 on H200.
template <class F>
__device__ __forceinline__ void each_plane(std::uint32_t widths, F&& f) {
  const auto is = [&](std::uint32_t width, int rank) { return (widths & width << (8 * rank)) != 0; };
  if (!is(4, 0)) goto two_0;
  f.template operator()<4, 0>();
  if (!is(4, 1)) goto two_1;
  f.template operator()<4, 1>();
  if (!is(4, 2)) goto two_2;
  f.template operator()<4, 2>();
  if (!is(4, 3)) goto two_3;
  f.template operator()<4, 3>();
  return;
two_0:
  if (!is(2, 0)) goto one_0;
  f.template operator()<2, 0>();
two_1:
  if (!is(2, 1)) goto one_1;
  f.template operator()<2, 1>();
two_2:
  if (!is(2, 2)) goto one_2;
  f.template operator()<2, 2>();
two_3:
  if (!is(2, 3)) goto one_3;
  f.template operator()<2, 3>();
  return;
one_0:
  if (!is(1, 0)) return;
  f.template operator()<1, 0>();
one_1:
  if (!is(1, 1)) return;
  f.template operator()<1, 1>();
one_2:
  if (!is(1, 2)) return;
  f.template operator()<1, 2>();
one_3:
  if (!is(1, 3)) return;
  f.template operator()<1, 3>();
}

}  // namespace oscar::kernels
