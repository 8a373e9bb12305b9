#include "transform/profile_allocation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <stdexcept>

#include "base/errors.h"
#include "base/random.h"

namespace oscar {
namespace {

using Places = std::vector<std::vector<ProfilePoint>>;

double mean_bits(const Places& places, const std::vector<std::size_t>& choice, int d) {
  double bits = 0.0;
  for (std::size_t p = 0; p < places.size(); ++p) bits += profile_bits(places[p][choice[p]].widths, d);
  return bits / static_cast<double>(places.size());
}

double total(const Places& places, const std::vector<std::size_t>& choice) {
  double error = 0.0;
  for (std::size_t p = 0; p < places.size(); ++p) error += places[p][choice[p]].error;
  return error;
}

TEST(ProfileAllocation, ThirtyFiveFallingProfiles) {
  const std::vector<Widths>& profiles = falling_profiles();
  EXPECT_EQ(profiles.size(), 35u);
  EXPECT_EQ(profiles.front(), (Widths{0, 0, 0, 0}));
  EXPECT_EQ(profiles.back(), (Widths{4, 4, 4, 4}));
  for (const Widths& w : profiles) EXPECT_TRUE(w[0] >= w[1] && w[1] >= w[2] && w[2] >= w[3]);
  EXPECT_EQ(std::set<Widths>(profiles.begin(), profiles.end()).size(), 35u);
}

TEST(ProfileAllocation, LatentsHaveThirtyRefinedProfilesMore) {
  const std::vector<Widths>& profiles = latent_profiles();
  EXPECT_EQ(profiles.size(), 65u);
  EXPECT_TRUE(std::equal(falling_profiles().begin(), falling_profiles().end(), profiles.begin()));
  for (std::size_t i = 35; i < profiles.size(); ++i) {
    const Widths& w = profiles[i];
    EXPECT_TRUE(w.refined && w[0] == 4 && w[1] >= w[2] && w[3] > 0) << widths_text(w);
  }
  EXPECT_EQ(std::set<Widths>(profiles.begin(), profiles.end()).size(), 65u);
  EXPECT_EQ(profiles[35], (Widths{4, 0, 0, 1, true}));
  EXPECT_EQ(widths_text(profiles.back()), "4-4-4-4 refined");
  EXPECT_EQ(Json(profiles.back()).dump(), R"([4,4,4,4,"refined"])");
  EXPECT_EQ(profile_bits({4, 2, 1, 2, true}, 512), profile_bits({4, 2, 1, 2}, 512));
}

TEST(ProfileAllocation, BitsCountScales) {
  EXPECT_DOUBLE_EQ(profile_bits({0, 0, 0, 0}, 128), 0.0);
  EXPECT_DOUBLE_EQ(profile_bits({1, 0, 0, 0}, 128), (32.0 + 8.0) / 128.0);
  EXPECT_DOUBLE_EQ(profile_bits({4, 2, 1, 1}, 128), 2.0 + 4.0 * 8.0 / 128.0);
  EXPECT_DOUBLE_EQ(profile_bits({4, 2, 1, 1}, 64), 2.5);
  EXPECT_DOUBLE_EQ(profile_bits({4, 4, 4, 4}, 256), 4.125);
}

// Two places, one budget for a single wide profile: it goes where it removes more.
TEST(ProfileAllocation, KnownAnswer) {
  const Widths none{0, 0, 0, 0}, wide{4, 4, 4, 4};
  const Places places = {{{none, 5.0}, {wide, 1.0}}, {{wide, 2.0}, {none, 7.0}}};
  EXPECT_EQ(allocate_profiles(places, 64, 4.5), (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(allocate_profiles(places, 64, 2.25), (std::vector<std::size_t>{0, 0}));   // gains 4 and 5
  EXPECT_EQ(allocate_profiles(places, 64, 2.249), (std::vector<std::size_t>{0, 1}));  // neither fits
}

TEST(ProfileAllocation, OfEqualErrorsTheCheapest) {
  // Errors that do not fall with the bits, as logit noise has them; twice the same profile costs the same.
  const Places places = {{{{4, 4, 4, 4}, 1.0}, {{1, 0, 0, 0}, 9.0}, {{2, 0, 0, 0}, 1.0}, {{2, 1, 0, 0}, 1.0}},
                         {{{4, 0, 0, 0}, 0.0}, {{0, 0, 0, 0}, 0.0}}};
  EXPECT_EQ(allocate_profiles(places, 64, 4.0), (std::vector<std::size_t>{2, 1}));
}

// 35^3 choices with random errors, falling with the bits or not: none within the budget is better, none as good is
// cheaper.
TEST(ProfileAllocation, IsTheBestChoice) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    const int d = seed % 2 == 0 ? 64 : 128;
    Places places(3);
    for (std::size_t p = 0; p < places.size(); ++p) {
      for (std::size_t i = 0; i < falling_profiles().size(); ++i) {
        const double noise = 1.0 + static_cast<double>(random_bits(seed, p, i) % 64) / 16.0;
        const double bits = profile_bits(falling_profiles()[i], d);
        places[p].push_back({falling_profiles()[i], noise * std::exp2(seed < 4 ? -2.0 * bits : 0.0)});
      }
    }
    const double budget = 0.5 + 0.4 * static_cast<double>(seed);
    const std::vector<std::size_t> choice = allocate_profiles(places, d, budget);
    EXPECT_LE(mean_bits(places, choice, d), budget + 1e-9);
    double least = 1e300, cost = 1e300;
    std::vector<std::size_t> c(3);
    for (c[0] = 0; c[0] < 35; ++c[0]) {
      for (c[1] = 0; c[1] < 35; ++c[1]) {
        for (c[2] = 0; c[2] < 35; ++c[2]) {
          const double bits = mean_bits(places, c, d), error = total(places, c);
          if (bits > budget + 1e-9 || error > least || (error == least && bits >= cost)) continue;
          least = error, cost = bits;
        }
      }
    }
    EXPECT_DOUBLE_EQ(total(places, choice), least) << seed;
    EXPECT_DOUBLE_EQ(mean_bits(places, choice, d), cost) << seed;
  }
}

TEST(ProfileAllocation, ManyCandidatesOfOnePlace) {
  Places places(1);
  for (int i = 0; i < 1000; ++i) places[0].push_back({{1, 1, 1, 1}, i == 700 ? 0.5 : 1.0});
  EXPECT_EQ(allocate_profiles(places, 64, 2.0), (std::vector<std::size_t>{700}));
}

TEST(ProfileAllocation, RefusesWhatCannotBe) {
  const Places flat = {{{{0, 0, 0, 0}, 1.0}}};
  for (const double bits : {0.1, 4.6, -1.0, std::nan("")}) {
    try {
      allocate_profiles(flat, 64, bits);
      FAIL() << bits;
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("is not possible"));
    }
  }
  try {
    allocate_profiles({{{{4, 4, 4, 4}, 1.0}}}, 64, 2.0);
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("fits into --bits 2"));
  }
  EXPECT_THROW(allocate_profiles({}, 64, 2.0), std::invalid_argument);
  EXPECT_THROW(allocate_profiles({{}}, 64, 2.0), std::invalid_argument);
  EXPECT_THROW(allocate_profiles(flat, 80, 2.0), std::invalid_argument);
  EXPECT_THROW(allocate_profiles({{{{0, 0, 0, 0}, std::nan("")}}}, 64, 2.0), std::invalid_argument);
}

}  // namespace
}  // namespace oscar
