// Which width profiles are worth measuring: those that budgets in use would take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bundle/curve_estimate.h"
#include "rotation/profile_allocation.h"

namespace oscar {

// One side of one layer, over the profiles of falling_profiles().
struct SideKnowledge {
  std::vector<double> predicted;     // [35] closed form, in any unit
  std::vector<MeasuredKl> measured;  // in the order of the passes

  bool knows(std::size_t profile) const;
};

inline constexpr std::int64_t kAnchors = 4;  // profiles of a side in the first round, the most of any

struct ChoiceOptions {
  std::vector<double> budgets{0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0};  // bits
  std::size_t most = 8;       // measured profiles of a side, all rounds together
  std::size_t per_round = 2;  // new ones of a side, after the first round
  // A profile is worth no pass where all it could take off the KL of the whole is less than this share of it.
  double negligible = 0.005;
};

// Indices into falling_profiles() to measure next, ascending, for each side. Sides without a measurement: four anchors
// on the lower hull of the prediction, the first of them 0-0-0-0, the others the nearest to 0.8, 1.6 and 2.6 bits.
// Otherwise what exact allocations over estimated_kl() take for the budgets and is not measured, unless the best
// measured profile of no more bits does nearly as well (`negligible`); the profiles that most budgets take first. Empty
// lists: nothing is left to learn.
std::vector<std::vector<std::size_t>> next_profiles(const std::vector<SideKnowledge>& sides, int head_dim,
                                                    const ChoiceOptions& options);

}  // namespace oscar
