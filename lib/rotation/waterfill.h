// Bits for blocks: how a byte budget is spread over layers, sides and blocks (closed form).
#pragma once

#include <array>
#include <vector>

#include "rotation/profile_allocation.h"

namespace oscar {

// Predicted error of one side of one layer with no bits at all in each block, in units of the residual stream:
// E_b = sum over heads of (d/4) (mean lambda of the block)^2 / R.
struct SideEnergy {
  std::array<double, kBlocks> block{};
};

struct Allocation {
  std::vector<Widths> key, value;  // [layer]
  double bits = 0.0;               // per element, scale bytes included
};

// Share of a block's energy that remains after w bits (the search encoder on Gaussian rows): 1, .3634, .1188, .0115.
double block_distortion(int width);

// The falling widths of least predicted error within the budget: exact, by allocate_profiles(). Energies fall, so
// falling widths are the best of all. No side has a floor: blocks that hardly matter get nothing (README.md has what a
// floor for keys costs). UsageError as require_budget().
Allocation waterfill(const std::vector<SideEnergy>& key, const std::vector<SideEnergy>& value, int head_dim,
                     double bits);

// Predicted error of a side with these widths.
double predicted_error(const SideEnergy& energy, const Widths& widths);

}  // namespace oscar
