// Bits for blocks: how a byte budget is spread over layers, sides and blocks (closed form).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "codec/codec.h"

namespace oscar {

// Predicted error of one side of one layer with no bits at all in each block, in units of the residual stream:
// E_b = sum over heads of (d/4) (mean lambda of the block)^2 / R.
struct SideEnergy {
  std::array<double, kBlocks> block{};
};

struct Allocation {
  std::vector<std::array<std::uint8_t, kBlocks>> key, value;  // [layer]
  double bits = 0.0;                                          // per element, scale bytes included
};

// Share of a block's energy that remains after w bits (the search encoder on Gaussian rows): 1, .3634, .1188, .0115.
double block_distortion(int width);

// Keys start at one bit in every block from 2 bits on (a block without bits drops its part of every logit; the Gaussian
// model underrates that), and at none below, where the bits are worth more elsewhere; values start at none. Then the
// step 0 -> 1 -> 2 -> 4 with the largest gain per bit is taken, (d/4) for each added bit and 8 for a new scale, as long
// as it fits. Steps that skip a width are tried too, since gains are not quite convex. UsageError when `bits` is below
// what the start needs or above what 4-4-4-4 takes.
Allocation waterfill(const std::vector<SideEnergy>& key, const std::vector<SideEnergy>& value, int head_dim,
                     double bits);

// Predicted error of a side with these widths.
double predicted_error(const SideEnergy& energy, const std::array<std::uint8_t, kBlocks>& widths);

}  // namespace oscar
