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

// UsageError for a budget below 1/4 bit or above what 4-4-4-4 everywhere takes.
void require_budget(double bits, int head_dim);

// The widths of least predicted error within the budget, (d/4) bits for each bit of width and 8 for a scale: exact, by
// dynamic programming over multiples of 8 bits. No side has a floor: blocks that hardly matter get nothing (README.md
// has what a floor for keys costs). UsageError as require_budget().
Allocation waterfill(const std::vector<SideEnergy>& key, const std::vector<SideEnergy>& value, int head_dim,
                     double bits);

// Predicted error of a side with these widths.
double predicted_error(const SideEnergy& energy, const std::array<std::uint8_t, kBlocks>& widths);

}  // namespace oscar
