// Analytic allocation: distributes a byte budget over layers, sides and blocks.
#pragma once

#include <array>
#include <vector>

#include "transform/profile_allocation.h"

namespace oscar {

// One head of one side of one layer.
struct HeadEnergy {
  // Predicted error without any bits in each block, in units of the residual stream: E_b = (d/4) (mean lambda of the
  // block)^2 / R.
  std::array<double, kBands> block{};
  // Keys: variance of a logit for errors of unit variance in each channel of a block, scale^2 tr(Q'_b). Q' is the plain
  // second moment of the queries in the cache basis (docs/transforms.md). Values: 0.
  std::array<double, kBands> logit_noise{};
};
struct SideEnergy {
  std::vector<HeadEnergy> heads;
};

struct Allocation {
  std::vector<Widths> key, value;  // [layer]
  double bits = 0.0;               // per element, scale bytes included
};

// Share of a block's energy that remains after w bits (the search encoder on Gaussian rows): 1, .3634, .1188, .0115.
double band_distortion(int width);

// The same of a block of `first` bits that another with `second` bits refines: about .30, .15 or .018 of the block's
// own.
double refined_distortion(int first, int second);

// Variance of key errors, whose scale is unbiased, relative to the variance of the block: .571, .133, .0116 for 1, 2, 4
// bits. A block without bits has the same error for all keys and adds nothing.
double unbiased_distortion(int width);

// Variance s^2 of the logit noise of a head whose keys have these widths.
double logit_noise(const HeadEnergy& head, const Widths& widths);

// The effect of logit noise with variance s^2 beyond first order: (e^{s^2} - 1) / s^2, 1 for no noise. Noise raises the
// share of the thousands of keys with low attention. Bounded at s^2 = 200.
double logit_noise_factor(double variance);

// The profiles of least predicted error within the budget: exact, by allocate_profiles(). No side has a minimum: blocks
// that hardly matter get nothing. profiles: falling_profiles(), or those of latents. UsageError as require_budget().
Allocation waterfill(const std::vector<SideEnergy>& key, const std::vector<SideEnergy>& value, int head_dim,
                     double bits, const std::vector<Widths>& profiles = falling_profiles());

// Predicted error of a side with these widths: summed over its heads, sum of E_b D(w_b) times logit_noise_factor().
// Refined widths have refined_distortion() in the first block, and the last one counts as without bits.
double predicted_error(const SideEnergy& energy, const Widths& widths);

}  // namespace oscar
