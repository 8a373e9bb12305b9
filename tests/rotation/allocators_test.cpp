// Allocators of other papers: known answers, naive versions of the formulas, budgets that hold.
#include "rotation/allocators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/errors.h"
#include "base/random.h"
#include "rotation/latent_fit.h"
#include "rotation/width_steps.h"

namespace oscar {
namespace {

double uniform(std::uint64_t seed, std::size_t i, std::size_t j) {
  return static_cast<double>(random_bits(seed, i, j) >> 11) * 0x1p-53;
}

// Spread over six powers of ten; falling within a list.
Sensitivities random_lists(std::size_t lists, std::size_t length, std::uint64_t seed) {
  Sensitivities out;
  for (std::size_t p = 0; p < lists; ++p) {
    std::vector<double>& list = out.emplace_back();
    double value = std::pow(10.0, 6.0 * uniform(seed, p, 999) - 3.0);
    for (std::size_t i = 0; i < length; ++i) list.push_back(value *= 0.5 + 0.5 * uniform(seed, p, i));
  }
  return out;
}

std::vector<Widths> places_of(const Allocation& a) {
  std::vector<Widths> places;
  for (std::size_t layer = 0; layer < a.key.size(); ++layer) {
    places.push_back(a.key[layer]);
    places.push_back(a.value[layer]);
  }
  return places;
}

Widths whole(int width) {
  const auto w = static_cast<std::uint8_t>(width);
  return {w, w, w, w};
}

// ---- width_steps.h

TEST(WaterLevel, KnownAnswers) {
  EXPECT_DOUBLE_EQ(water_level({4, 4, 4}, 1.0), 0.0);      // theta 1: one bit each
  EXPECT_DOUBLE_EQ(water_level({16, 1}, 1.0), 0.0);        // two bits and none
  EXPECT_DOUBLE_EQ(water_level({1, 16, 1, 1}, 0.5), 0.0);  // in any order
  EXPECT_DOUBLE_EQ(water_level({64, 16}, 2.0), 1.0);       // 2.5 and 1.5
  EXPECT_EQ(water_level({0, 0}, 0.5), -INFINITY);
  EXPECT_DOUBLE_EQ(water_level({16, 0}, 1.0), 0.0);  // what never varies takes no bits
}

TEST(WaterLevel, TheMeanOfTheBitsIsMet) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<double> variances = random_lists(1, 17, seed).front();
    for (const double mean : {0.1, 0.5, 1.5, 3.0}) {
      const double level = water_level(variances, mean);
      double bits = 0.0;
      for (const double v : variances) bits += std::max(0.0, 0.5 * (std::log2(v) - level));
      EXPECT_NEAR(bits / 17.0, mean, 1e-12) << seed;
    }
  }
}

TEST(Climb, StepsByLevelUntilTheBudgetIsSpent) {
  // Of a row of 64 channels: one bit for a block takes 16 + 8 bits, two bits 16 more, the whole side 4 (16 + 8).
  const std::vector<WidthStep> steps = {{0, 0, 1, 9.0}, {0, 0, 2, 7.0}, {1, 2, 1, 8.0}, {1, 2, 2, 6.0}, {1, 3, 1, 5.0}};
  const auto at_bits = [&](int bits) { return climb(steps, 2, 64, bits / 128.0); };
  EXPECT_EQ(at_bits(39)[0], (Widths{1, 0, 0, 0}));
  EXPECT_EQ(at_bits(47)[0], (Widths{2, 0, 0, 0}));  // what 24 bits did not fit into is not left unspent
  EXPECT_EQ(at_bits(47)[1], (Widths{0, 0, 0, 0}));
  EXPECT_EQ(at_bits(48)[1], (Widths{0, 0, 1, 0}));
  EXPECT_EQ(at_bits(64)[0], (Widths{2, 0, 0, 0}));
  EXPECT_EQ(at_bits(80)[1], (Widths{0, 0, 2, 0}));
  EXPECT_EQ(at_bits(103)[1], (Widths{0, 0, 2, 0}));
  EXPECT_EQ(at_bits(104)[1], (Widths{0, 0, 2, 1}));
}

TEST(Climb, AStepThatDoesNotFitEndsItsBlockAlone) {
  const std::vector<WidthStep> steps = {{0, 0, 1, 9.0}, {0, 0, 2, 8.0}, {0, 0, 4, 7.0},
                                        {1, 0, 1, 6.0}, {0, 0, 4, 5.0}, {1, 1, 1, -INFINITY}};
  // 24 + 16 bits; the 32 more of four bits do not fit into 70, but 24 of another place do.
  const std::vector<Widths> found = climb(steps, 2, 64, 70.0 / 128.0);
  EXPECT_EQ(found[0], (Widths{2, 0, 0, 0}));
  EXPECT_EQ(found[1], (Widths{1, 0, 0, 0}));
  EXPECT_EQ(climb(steps, 2, 64, 4.0)[1], (Widths{1, 0, 0, 0}));  // minus infinity is never taken
}

// ---- the formulas

TEST(Allocators, WaterFillsOverLayersAndSides) {
  // Two channels in a block; theta = 1 gives 4, 2, 1 and 0 bits to blocks of variances 256, 16, 4 and 1.
  const Sensitivities variances = {
      {256, 256, 16, 16, 4, 4, 1, 1}, {16, 16, 16, 16, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}, {4, 4, 4, 4, 4, 4, 4, 4}};
  // 128 channels: (4 + 2 + 1 + 2 + 2 + 4 x 1) 32 code bits and 9 scales of 8.
  const Allocation a = water_fill_channels(variances, 128, (15 * 32 + 9 * 8) / 512.0);
  EXPECT_EQ(a.key[0], (Widths{4, 2, 1, 0}));
  EXPECT_EQ(a.value[0], (Widths{2, 2, 0, 0}));
  EXPECT_EQ(a.key[1], whole(0));
  EXPECT_EQ(a.value[1], whole(1));
  EXPECT_DOUBLE_EQ(a.bits, (15 * 32 + 9 * 8) / 512.0);
  // The mean over a block's channels decides: (3 + 0) / 2 bits are rounded to 2 where theta is 1, as is 1.5.
  const Sensitivities uneven = {{64, 1, 1, 1, 1, 1, 1, 1}, {4, 4, 1, 1, 1, 1, 1, 1}};
  const Allocation u = water_fill_channels(uneven, 128, (2 * 32 + 8 + 32 + 8) / 256.0);
  EXPECT_EQ(u.key[0], (Widths{2, 0, 0, 0}));
  EXPECT_EQ(u.value[0], (Widths{1, 0, 0, 0}));
}

TEST(Allocators, SpectraGivesEveryPlaceTheSameBudget) {
  Sensitivities variances = {{256, 16, 4, 1}, {1e-9, 1e-9, 1e-9, 1e-9}};  // the second hardly matters, and is not asked
  const Allocation a = water_fill_places(variances, 128, (7 * 32 + 3 * 8) / 128.0);
  EXPECT_EQ(a.key[0], (Widths{4, 2, 1, 0}));
  EXPECT_EQ(a.value[0], (Widths{2, 2, 1, 1}));  // 6 x 32 + 4 x 8 = 224 of 248 bits
  EXPECT_LE(profile_bits(a.value[0], 128), (7 * 32 + 3 * 8) / 128.0);
}

TEST(Allocators, RateBaseIsTheLeastSquaresFit) {
  // By hand: ln D = 0, -1.012251, -2.130314, -4.465408 at 0, 1, 2, 4 bits; slope -9.820559 / 8.75.
  EXPECT_NEAR(rate_base(), std::exp(9.820559 / 8.75), 1e-5);
}

TEST(Allocators, RateDistortionWidthsFollowTheLogarithm) {
  const double beta = rate_base();
  // b = mean + 4, 2, 1 and 0 less their mean: 4, 2, 1 and 0 bits.
  const Sensitivities weights = {{std::pow(beta, 4)}, {beta * beta}, {beta}, {1.0}};
  const Allocation a = rate_distortion_widths(weights, 128, (7 * 128 + 3 * 32) / 512.0);
  EXPECT_EQ(places_of(a), (std::vector<Widths>{whole(4), whole(2), whole(1), whole(0)}));
}

TEST(Allocators, NormsAreSpentGreedily) {
  // Gains of |W|^2: .75 for the first bit, .1875 for the second, .0293 a bit for two more.
  const Sensitivities norms = {{100}, {30}, {10}, {1}};  // 75, 18.75, 2.93; 22.5, 5.6; 7.5, 1.9; .75
  std::vector<std::vector<Widths>> found;
  for (const int steps : {1, 2, 3, 4, 5}) {
    // One bit for a side takes 128 + 32 bits, the next 128.
    const int bits[] = {160, 320, 448, 608, 736};
    found.push_back(places_of(greedy_norm_widths(norms, 128, bits[steps - 1] / 512.0)));
  }
  EXPECT_EQ(found[0], (std::vector<Widths>{whole(1), whole(0), whole(0), whole(0)}));
  EXPECT_EQ(found[1], (std::vector<Widths>{whole(1), whole(1), whole(0), whole(0)}));
  EXPECT_EQ(found[2], (std::vector<Widths>{whole(2), whole(1), whole(0), whole(0)}));
  EXPECT_EQ(found[3], (std::vector<Widths>{whole(2), whole(1), whole(1), whole(0)}));
  EXPECT_EQ(found[4], (std::vector<Widths>{whole(2), whole(2), whole(1), whole(0)}));
}

// What bit_pattern() of the authors' own package (kvq 0.1.0 from PyPI) gives for these norms and widths 0, 1, 2, 4. It
// counts code bits alone, so the budget here is theirs and 32 bits of scales for each side with codes.
TEST(Allocators, SpectralChoosesWhatItsAuthorsPackageChooses) {
  const double norms[] = {3.0, 1.0, 2.5, 1.5, 2.0, 0.7, 4.0, 1.2};  // layer by layer, W_K and W_V
  Sensitivities squared;
  for (const double norm : norms) squared.push_back({norm * norm});
  const std::vector<std::vector<std::uint8_t>> theirs = {
      {1, 0, 1, 0, 1, 0, 1, 0}, {2, 0, 1, 0, 1, 0, 2, 0}, {2, 0, 2, 1, 1, 0, 2, 0}, {2, 1, 2, 2, 2, 0, 2, 1},
      {2, 1, 2, 2, 2, 1, 4, 2}, {4, 2, 2, 2, 2, 2, 4, 2}, {4, 2, 4, 2, 4, 2, 4, 2}};
  for (const std::vector<std::uint8_t>& widths : theirs) {
    double bits = 0.0;
    std::vector<Widths> expected;
    for (const std::uint8_t width : widths) {
      bits += width + (width > 0 ? 32.0 / 128 : 0.0);
      expected.push_back(whole(width));
    }
    EXPECT_EQ(places_of(greedy_norm_widths(squared, 128, bits / 8)), expected) << bits / 8;
  }
}

// ---- exact programs: all choices for three layers

using Menu = std::vector<std::vector<Widths>>;  // what a candidate gives the places of its unit

// Least sum over every assignment of candidates to units.
double least_of_all(const Sensitivities& errors, const Menu& menu, int d, double bits) {
  const auto places = static_cast<double>(errors.size() * menu.front().size());
  std::size_t choices = 1;
  for (std::size_t u = 0; u < errors.size(); ++u) choices *= menu.size();
  double least = INFINITY;
  for (std::size_t choice = 0; choice < choices; ++choice) {
    double sum = 0.0, used = 0.0;
    std::size_t rest = choice;
    for (const std::vector<double>& unit : errors) {
      const std::size_t c = rest % menu.size();
      rest /= menu.size();
      sum += unit[c];
      for (const Widths& widths : menu[c]) used += profile_bits(widths, d) / places;
    }
    if (used <= bits + 1e-9) least = std::min(least, sum);
  }
  return least;
}

// What the choice of an allocator sums up to.
double sum_of(const Allocation& a, const Sensitivities& errors, const Menu& menu) {
  const std::vector<Widths> places = places_of(a);
  const std::size_t size = menu.front().size();
  double sum = 0.0;
  for (std::size_t u = 0; u < errors.size(); ++u) {
    const auto first = places.begin() + static_cast<std::ptrdiff_t>(u * size);
    const auto found = std::find(menu.begin(), menu.end(), std::vector<Widths>(first, first + static_cast<int>(size)));
    sum += found == menu.end() ? INFINITY : errors[u][static_cast<std::size_t>(found - menu.begin())];
  }
  return sum;
}

TEST(Allocators, ExactProgramsFindTheLeastSum) {
  Menu one, tied, pairs;
  for (const int k : {0, 1, 2, 4}) {
    one.push_back({whole(k)});
    tied.push_back({whole(k), whole(k)});
    for (const int v : {0, 1, 2, 4}) pairs.push_back({whole(k), whole(v)});
  }
  struct Case {
    Allocation (*allocate)(const Sensitivities&, int, double);
    const Menu& menu;
    std::size_t units;
  };
  for (const Case& c : {Case{tied_widths, tied, 3}, Case{paired_widths, pairs, 3}, Case{scored_widths, one, 6}}) {
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      Sensitivities errors = random_lists(c.units, c.menu.size(), seed);
      if (seed == 3) std::reverse(errors[1].begin(), errors[1].end());  // more bits are worse, as measured KL may say
      for (const double bits : {0.25, 0.9, 1.25, 1.5, 2.25, 3.0, 4.25}) {
        const Allocation a = c.allocate(errors, 64, bits);
        const double least = least_of_all(errors, c.menu, 64, bits);
        EXPECT_NEAR(sum_of(a, errors, c.menu), least, 1e-12 * least) << c.menu.size() << " " << seed << " at " << bits;
      }
    }
  }
}

TEST(Allocators, RankedLayersGetTheWiderOfTwoWidths) {
  const Sensitivities norms = {{1}, {7}, {3}, {9}, {2}, {8}, {4}, {6}};  // keys: layers 3, 1, 2, 0; values: 1, 2, 0, 3
  // One bit everywhere takes 1.25; each side that gets a second one takes 1/8 of a bit on average.
  const auto at_bits = [&](double bits) { return ranked_widths(norms, 128, bits); };
  EXPECT_EQ(places_of(at_bits(1.25)), std::vector<Widths>(8, whole(1)));
  const Allocation three = at_bits(1.25 + 3.0 / 8.0);
  EXPECT_EQ(three.key, (std::vector<Widths>{whole(1), whole(2), whole(1), whole(2)}));
  EXPECT_EQ(three.value, (std::vector<Widths>{whole(1), whole(2), whole(1), whole(1)}));
  EXPECT_EQ(places_of(at_bits(2.25)), std::vector<Widths>(8, whole(2)));
  const Allocation low = at_bits(0.5);  // below one bit: one or none; three sides fit
  EXPECT_EQ(low.key, (std::vector<Widths>{whole(0), whole(1), whole(0), whole(1)}));
  EXPECT_EQ(low.value, (std::vector<Widths>{whole(0), whole(1), whole(0), whole(0)}));
  EXPECT_EQ(places_of(ranked_widths({{1}, {1}, {1}, {1}}, 128, 0.7)),  // equal ones in their order
            (std::vector<Widths>{whole(1), whole(1), whole(0), whole(0)}));
}

// ---- all of them

// Numbers that an allocator takes for each place; places that are keys and values together count once.
std::size_t length_of(const AllocatorRow& row) {
  if (row.id == "aatc" || row.id == "spectra") return 4 * 6;
  if (row.id == "kvtuner") return 16;
  return row.id == "modelopt" || row.id == "pmkvq" ? 4 : 1;
}

// Of three layers.
Sensitivities made_for(const AllocatorRow& row, std::uint64_t seed) {
  return random_lists(row.id == "modelopt" || row.id == "kvtuner" ? 3 : 6, length_of(row), seed);
}

TEST(Allocators, NoneExceedsTheBudget) {
  for (const AllocatorRow& row : allocators()) {
    for (const int d : {64, 128}) {
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const Sensitivities made = made_for(row, seed);
        for (double bits = 0.25; bits <= 4.25; bits += 0.125) {
          const Allocation a = row.allocate(made, d, bits);
          ASSERT_EQ(a.key.size(), 3u);
          ASSERT_EQ(a.value.size(), 3u);
          double sum = 0.0;
          for (const Widths& w : places_of(a)) sum += profile_bits(w, d) / 6.0;
          EXPECT_NEAR(sum, a.bits, 1e-12);
          EXPECT_LE(a.bits, bits + 1e-9) << row.id;
          EXPECT_GE(a.bits, bits - 0.67) << row.id << " at " << bits;  // a layer of three from 2 to 4 bits
        }
        const Allocation most = row.allocate(made, d, profile_bits(whole(4), d));
        for (const Widths& w : places_of(most)) EXPECT_EQ(w, whole(4)) << row.id;
      }
    }
  }
}

TEST(Allocators, RefuseWhatIsNoSensitivity) {
  for (const AllocatorRow& row : allocators()) {
    const Sensitivities good = made_for(row, 1);
    for (const double bad : {-1.0, std::nan("")}) {
      Sensitivities made = good;
      made[2].back() = bad;
      EXPECT_THROW(row.allocate(made, 128, 2.0), std::invalid_argument) << row.id;
    }
    Sensitivities made = good;
    made[1].resize(made[1].size() + 4, 1.0);
    EXPECT_THROW(row.allocate(made, 128, 2.0), std::invalid_argument) << row.id;
    EXPECT_THROW(row.allocate({}, 128, 2.0), std::invalid_argument) << row.id;
    EXPECT_THROW(row.allocate(good, 128, 0.1), UsageError) << row.id;
    EXPECT_EQ(find_allocator(row.id), &row);
  }
  EXPECT_EQ(find_allocator("closed"), nullptr);
}

// One sentence, whether it is said before statistics are collected or by the fit.
TEST(Allocators, OfWidthsApartAreNotForLatentAttention) {
  const auto refusal = [](const FitOptions& o) {
    try {
      require_one_code(o);
    } catch (const UsageError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  FitOptions o;
  o.method = "waterfill";
  EXPECT_EQ(refusal(o), "");
  o.allocate = "measured";  // a curve of the one vector
  EXPECT_EQ(refusal(o), "");
  o.allocate = "kvmix";
  EXPECT_THAT(refusal(o), ::testing::HasSubstr("--allocate kvmix chooses widths for keys and values apart"));
  o.allocate = "closed", o.key_profiles = {{2, 2, 2, 2}};
  EXPECT_THAT(refusal(o), ::testing::HasSubstr("caches one vector for both"));
  o = {}, o.method = "tasq";
  EXPECT_THAT(refusal(o), ::testing::HasSubstr("--method tasq codes keys and values apart"));
}

}  // namespace
}  // namespace oscar
