// Widths that rise step by step until a budget is spent: what allocators do that follow a formula instead of an exact
// program (allocators.h).
#pragma once

#include <cstddef>
#include <vector>

#include "rotation/profile_allocation.h"

namespace oscar {

inline constexpr int kWholeSide = -1;

// A width goes up: that of one block of a place, or of all four.
struct WidthStep {
  std::size_t place = 0;
  int block = kWholeSide;
  std::uint8_t width = 0;  // behind the step
  double level = 0.0;      // steps are taken from the highest on; minus infinity: never
};

// The steps from 0 to 1, 2 and 4 bits of formulas that give real numbers of bits: a number is rounded to the nearest
// width, so a step is taken where the number passes .5, 1.5 and 3.
struct RoundedStep {
  std::uint8_t width;
  double bits;
};
inline constexpr RoundedStep kRoundedSteps[] = {{1, 0.5}, {2, 1.5}, {4, 3.0}};

// Widths of `places` places, all 0 at first, behind the steps that fit into the budget: a mean over the places of
// profile_bits() of at most `bits`. Where a step does not fit, its block (or side) stays as it is, and smaller steps of
// others are still taken, so that little is left. Equal levels: in the order of places, then blocks, then widths.
// UsageError as require_budget().
std::vector<Widths> climb(std::vector<WidthStep> steps, std::size_t places, int head_dim, double bits);

// log2 of the water level theta at which channels of these variances have `mean_bits` bits on average by reverse
// water-filling, b = max(0, log2(variance / theta) / 2). Minus infinity where no variance is above 0.
double water_level(std::vector<double> variances, double mean_bits);

}  // namespace oscar
