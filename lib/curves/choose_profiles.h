// Chooses the width profiles to measure: the profiles that budgets in use would select.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bundle/curve_estimate.h"
#include "transform/profile_allocation.h"

namespace oscar {

// One side of one layer, over the profiles of latent_profiles(), which begin with falling_profiles().
struct SideKnowledge {
  std::vector<double> predicted;     // analytic costs of the first profiles, in any unit
  std::vector<MeasuredKl> measured;  // in the order of the passes

  bool knows(std::size_t profile) const;
};

inline constexpr std::int64_t kAnchors = 3;  // profiles of a side in the first round, the largest number per round

struct ChoiceOptions {
  std::vector<double> budgets{0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0};  // bits
  std::size_t most = 8;       // most measured profiles of a side, over all rounds
  std::size_t per_round = 2;  // new profiles of a side, after the first round
  // A profile is not worth a pass if it could reduce the end-to-end KL by less than this share.
  double negligible = 0.02;
};

// For each side, indices into latent_profiles() to measure next, ascending. Sides without a measurement get three
// anchors on the lower hull of the prediction: the nearest to 0.8, 1.6 and 2.6 bits. Other sides get the unmeasured
// profiles that exact allocations over estimated_kl() select for the budgets. Excluded are profiles for which the best
// measured profile of no more bits is nearly as good (`negligible`). So a profile below all measured ones, such as
// 0-0-0-0, is measured before anything relies on it. Profiles of most budgets come first. Empty lists: there is nothing
// left to learn.
std::vector<std::vector<std::size_t>> next_profiles(const std::vector<SideKnowledge>& sides, int head_dim,
                                                    const ChoiceOptions& options);

}  // namespace oscar
