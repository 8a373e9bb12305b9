// Which profiles are measured: anchors, and that few points are enough for allocations as good as
// all.
#include "curves/choose_profiles.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace oscar {
namespace {

constexpr int kHeadDim = 64;

double uniform(std::uint64_t seed, std::uint64_t i, std::uint64_t j) {
  return static_cast<double>(random_bits(seed, i, j) >> 11) * 0x1p-53;
}

// KL of a side whose blocks have the given energies: what analytic costs would say.
std::vector<double> curve(const std::array<double, 4>& energy) {
  constexpr double kShare[] = {1.0, 0.3634, 0.1188, 0.0, 0.0115};
  std::vector<double> kl;
  for (const Widths& widths : falling_profiles()) {
    double sum = 0.0;
    for (std::size_t b = 0; b < energy.size(); ++b) sum += energy[b] * kShare[widths[b]];
    kl.push_back(sum);
  }
  return kl;
}

SideKnowledge unknown(std::vector<double> predicted) { return {std::move(predicted), {}}; }

TEST(ChooseProfiles, FirstRoundIsThreeOnTheHull) {
  const std::vector<SideKnowledge> sides{unknown(curve({1.0, 0.1, 0.01, 0.001}))};
  const auto next = next_profiles(sides, kHeadDim, {});
  ASSERT_EQ(next[0].size(), 3u);
  for (const std::size_t i : next[0]) EXPECT_GT(falling_profiles()[i][0], 0);
}

// A side that seems to cost hardly anything is measured without bits before a budget leaves it without.
TEST(ChooseProfiles, NothingIsMeasuredBeforeItIsTaken) {
  std::vector<SideKnowledge> sides(3, unknown(curve({1.0, 0.3, 0.1, 0.03})));
  sides[2] = unknown(curve({3e-5, 1e-5, 3e-6, 1e-6}));
  for (SideKnowledge& side : sides) side.measured.push_back({5, side.predicted[5]});
  const auto next = next_profiles(sides, kHeadDim, {});
  ASSERT_FALSE(next[2].empty());
  EXPECT_EQ(falling_profiles()[next[2][0]], (Widths{0, 0, 0, 0}));
}

// A side that hardly costs anything even without bits gets no more passes, though budgets would give it some.
TEST(ChooseProfiles, WhatHardlyCostsIsNotMeasuredAgain) {
  std::vector<SideKnowledge> sides(3, unknown(curve({1.0, 0.3, 0.1, 0.03})));
  sides[2] = unknown(curve({3e-5, 1e-5, 3e-6, 1e-6}));
  for (SideKnowledge& side : sides) side.measured.push_back({0, side.predicted[0]});
  ChoiceOptions options;
  options.budgets = {1.0, 2.0, 4.0};  // at 4 bits some are left for it
  const auto next = next_profiles(sides, kHeadDim, options);
  EXPECT_FALSE(next[0].empty());
  EXPECT_TRUE(next[2].empty());
  options.negligible = 0.0;
  EXPECT_FALSE(next_profiles(sides, kHeadDim, options)[2].empty());
}

// Truth is off the prediction by up to 30 times for a side and bends with bits: few measured points must be enough.
TEST(ChooseProfiles, FewPointsAllocateAsWellAsAll) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<SideKnowledge> sides;
    std::vector<std::vector<double>> truth;
    for (std::uint64_t s = 0; s < 12; ++s) {
      std::array<double, 4> energy{1.0};
      for (std::size_t b = 1; b < 4; ++b) energy[b] = energy[b - 1] * std::pow(10.0, -1.5 * uniform(seed, s, b));
      sides.push_back(unknown(curve(energy)));
      const double scale = std::pow(10.0, 3.0 * uniform(seed, s, 5) - 1.5), bend = 1.5 * uniform(seed, s, 6) - 0.75;
      std::vector<double>& kl = truth.emplace_back(sides.back().predicted);
      for (std::size_t i = 0; i < kl.size(); ++i) {
        const double noise = std::pow(10.0, 0.3 * uniform(seed, s, 100 + i) - 0.15);
        kl[i] *= scale * noise * std::exp(bend * profile_bits(falling_profiles()[i], kHeadDim));
      }
    }
    const ChoiceOptions options;
    for (int round = 0;; ++round) {
      ASSERT_LT(round, 20);
      bool more = false;
      const auto next = next_profiles(sides, kHeadDim, options);
      for (std::size_t s = 0; s < sides.size(); ++s) {
        for (const std::size_t i : next[s]) {
          ASSERT_FALSE(sides[s].knows(i)) << "measured twice";
          sides[s].measured.push_back({i, truth[s][i]});
          more = true;
        }
      }
      if (!more) break;
    }
    std::vector<std::vector<ProfilePoint>> few, all;  // estimates of few points, and the truth
    for (std::size_t s = 0; s < sides.size(); ++s) {
      few.emplace_back(), all.emplace_back();
      const std::vector<double> estimates = estimated_kl(sides[s].predicted, sides[s].measured, kHeadDim);
      for (std::size_t i = 0; i < truth[s].size(); ++i) {
        all.back().push_back({falling_profiles()[i], truth[s][i]});
        few.back().push_back({falling_profiles()[i], estimates[i]});
      }
      EXPECT_LE(sides[s].measured.size(), options.most);
    }
    const auto total = [&](const std::vector<std::size_t>& choice) {
      double sum = 0.0;
      for (std::size_t s = 0; s < choice.size(); ++s) sum += truth[s][choice[s]];
      return sum;
    };
    for (const double bits : {0.75, 1.0, 1.4, 1.5, 2.1, 2.25, 3.0}) {
      EXPECT_LE(total(allocate_profiles(few, kHeadDim, bits)), 1.35 * total(allocate_profiles(all, kHeadDim, bits)))
          << seed << " at " << bits << " bits";
    }
  }
}

}  // namespace
}  // namespace oscar
