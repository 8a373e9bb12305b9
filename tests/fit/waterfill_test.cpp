#include "fit/waterfill.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "base/random.h"

namespace oscar {
namespace {

SideEnergy blocks(double a, double b, double c, double d) { return {{HeadEnergy{{a, b, c, d}, {}}}}; }

std::vector<SideEnergy> random_energies(std::size_t layers, std::uint64_t seed) {
  std::vector<SideEnergy> sides(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    sides[l].heads.resize(1);
    double size = std::exp2(static_cast<double>(random_bits(seed, l, 99) % 80) / 10.0);
    for (std::size_t b = 0; b < kBands; ++b) {
      sides[l].heads[0].block[b] = size;
      size *= 0.1 + 0.8 * static_cast<double>(random_bits(seed, l, b) % 1000) / 1000.0;
    }
  }
  return sides;
}

double bits_of(const Allocation& a, int d) {
  double bits = 0.0;
  for (const auto* side : {&a.key, &a.value}) {
    for (const Widths& w : *side)
      bits += band_code(d, w).bits_per_element() / (2.0 * static_cast<double>(a.key.size()));
  }
  return bits;
}

double error_of(const Allocation& a, const std::vector<SideEnergy>& key, const std::vector<SideEnergy>& value) {
  double error = 0.0;
  for (std::size_t l = 0; l < key.size(); ++l) {
    error += predicted_error(key[l], a.key[l]) + predicted_error(value[l], a.value[l]);
  }
  return error;
}

// What a code loses is coded as measured on normal rows in blocks of 128.
TEST(Waterfill, RefinedDistortionsAreThoseOfTheCodec) {
  constexpr int kRows = 1000, kDim = 512;
  at::manual_seed(7);
  const at::Tensor rows = at::randn({kRows, kDim});
  at::Tensor out = at::empty_like(rows);
  for (const std::uint8_t w : {1, 2, 4}) {
    const float sigma = w == 4 ? 1 / 64.0f : w == 2 ? 1 / 16.0f : 1 / 8.0f;
    double loss[2] = {0.0, 0.0};
    for (const bool refined : {false, true}) {
      const RowCodec codec{.code = band_code(kDim, {4, 0, 0, w}, refined),
                           .side = Side::kValue,
                           .encoder = Encoder::kSearch,
                           .sigma = {0.125f, 1.0f, 1.0f, refined ? sigma : 1.0f}};
      quantize_rows(codec, rows.const_data_ptr<float>(), kRows, 0, out.mutable_data_ptr<float>(), 0);
      loss[refined] = (rows - out).narrow(1, 0, kDim / 4).square().sum().item<double>();
    }
    EXPECT_NEAR(loss[1] / loss[0], refined_distortion(4, w) / band_distortion(4), 0.06 * loss[1] / loss[0]) << int{w};
  }
}

// Refined where nearly all energy is in the first block, and plain where the last block has as much as the others.
TEST(Waterfill, ChoosesRefinedCodesWhereTheyLoseLess) {
  const auto chosen = [](const SideEnergy& side, double bits) {
    return waterfill({side}, {}, 512, bits, latent_profiles()).key.front();
  };
  const SideEnergy uneven = blocks(1.0, 0.03, 0.005, 0.0004), even = blocks(1.0, 0.9, 0.8, 0.7);
  EXPECT_EQ(chosen(uneven, 4.0625), (Widths{4, 4, 4, 4, true}));
  EXPECT_TRUE(chosen(uneven, 2.25).refined);
  for (const double bits : {1.0, 2.25, 4.0625}) {
    EXPECT_FALSE(chosen(even, bits).refined) << bits;
    EXPECT_EQ(chosen(even, bits), waterfill({even}, {}, 512, bits).key.front());
    const double refined = predicted_error(uneven, chosen(uneven, bits));
    EXPECT_LE(refined, predicted_error(uneven, waterfill({uneven}, {}, 512, bits).key.front()));
  }
  const HeadEnergy noisy{{1, 1, 1, 1}, {8, 4, 2, 1}};
  EXPECT_NEAR(logit_noise(noisy, {4, 2, 1, 2, true}), 8 * 0.15 * 0.0115 + 4 * 0.133 + 2 * 0.571, 1e-12);
}

TEST(Waterfill, MeetsTheBudgetAndUsesIt) {
  for (const int d : {64, 128, 256}) {
    const auto key = random_energies(6, 1), value = random_energies(6, 2);
    double previous = 1e300;
    for (const double budget : {1.25, 1.5, 1.75, 2.0, 2.25, 3.0, 4.0}) {
      const Allocation a = waterfill(key, value, d, budget);
      EXPECT_LE(bits_of(a, d), budget + 1e-9);
      EXPECT_GT(bits_of(a, d), budget - 0.05);
      EXPECT_NEAR(bits_of(a, d), a.bits, 1e-9);
      const double error = error_of(a, key, value);
      EXPECT_LE(error, previous) << budget;
      previous = error;
    }
  }
}

TEST(Waterfill, EqualEnergiesGetEqualWidths) {
  const std::vector<SideEnergy> flat(3, blocks(1, 1, 1, 1));
  for (const auto& [bits, width] : {std::pair{1.25, 1}, {2.25, 2}, {4.25, 4}}) {
    const Allocation a = waterfill(flat, flat, 128, bits);
    const auto w = static_cast<std::uint8_t>(width);
    for (std::size_t l = 0; l < 3; ++l) {
      EXPECT_EQ(a.key[l], (Widths{w, w, w, w}));
      EXPECT_EQ(a.value[l], (Widths{w, w, w, w}));
    }
  }
}

TEST(Waterfill, TheStrongestPlaceGetsTheBits) {
  std::vector<SideEnergy> key(4, blocks(1e-3, 1e-4, 1e-5, 1e-6)), value = key;
  key[2] = blocks(1, 1, 1, 1);
  const Allocation a = waterfill(key, value, 128, 1.25);
  EXPECT_EQ(a.key[2], (Widths{4, 4, 4, 4}));
  EXPECT_GE(a.value[0][0], a.value[0][3]);
}

TEST(Waterfill, WhatDoesNotMatterGetsNothing) {
  std::vector<SideEnergy> key(2, blocks(0, 0, 0, 0)), value(2, blocks(1, 1, 1, 1));
  const Allocation a = waterfill(key, value, 128, 4.0);
  for (const Widths& w : a.key) EXPECT_EQ(w, (Widths{0, 0, 0, 0}));
  for (const Widths& w : a.value) EXPECT_EQ(w, (Widths{4, 4, 4, 4}));
  EXPECT_DOUBLE_EQ(a.bits, 2.125);  // no more than is of use
}

// One layer has 4^8 choices: none is better.
TEST(Waterfill, IsTheBestChoice) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const auto key = random_energies(1, 10 + seed), value = random_energies(1, 20 + seed);
    const Allocation a = waterfill(key, value, 128, 1.75);
    double best = 1e300;
    constexpr std::uint8_t kWidths[] = {0, 1, 2, 4};
    for (int choice = 0; choice < 65536; ++choice) {
      Allocation c{{Widths{}}, {Widths{}}, 0.0};
      for (std::size_t b = 0; b < kBands; ++b) {
        c.key[0][b] = kWidths[choice >> (2 * b) & 3];
        c.value[0][b] = kWidths[choice >> (8 + 2 * b) & 3];
      }
      if (bits_of(c, 128) <= 1.75 + 1e-9) best = std::min(best, error_of(c, key, value));
    }
    EXPECT_NEAR(error_of(a, key, value), best, 1e-12 * best) << seed;
  }
}

TEST(Waterfill, LogitNoiseFactor) {
  EXPECT_DOUBLE_EQ(logit_noise_factor(0.0), 1.0);
  EXPECT_NEAR(logit_noise_factor(1e-9), 1.0, 1e-8);
  EXPECT_NEAR(logit_noise_factor(2.0), (std::exp(2.0) - 1.0) / 2.0, 1e-12);
  EXPECT_TRUE(std::isfinite(logit_noise_factor(1e9)));
  const HeadEnergy head{{1, 1, 1, 1}, {10.0, 1.0, 0.5, 0.0}};
  EXPECT_DOUBLE_EQ(logit_noise(head, {0, 0, 0, 0}), 0.0);
  EXPECT_DOUBLE_EQ(logit_noise(head, {4, 2, 1, 0}), 0.116 + 0.133 + 0.5 * 0.571);
}

// One bit for a block whose logits then err by e^1 and more is worse than none; two bits with less are better.
TEST(Waterfill, NoisyLogitsNeverGetOneBitInTheStrongestBlock) {
  for (const double noise : {8.0, 30.0, 1000.0}) {  // s^2 of 4.6 and more with one bit
    std::vector<SideEnergy> key(3, blocks(1.0, 1e-3, 1e-4, 1e-5)), value(3, blocks(1.0, 0.5, 0.2, 0.1));
    key[1].heads[0].logit_noise = {noise, 1e-2, 1e-3, 1e-4};
    for (double bits = 0.25; bits < 3.0; bits += 0.125) {
      const Allocation a = waterfill(key, value, 128, bits);
      EXPECT_NE(a.key[1], (Widths{1, 0, 0, 0})) << noise << " " << bits;
      EXPECT_NE(a.key[1][0], 1) << noise << " " << bits;
    }
    // Room for one bit in one block: it is taken only without the noise.
    const std::vector<SideEnergy> nothing(1, blocks(0, 0, 0, 0));
    EXPECT_EQ(waterfill({key[0]}, nothing, 128, 0.25).key[0], (Widths{1, 0, 0, 0}));
    EXPECT_EQ(waterfill({key[1]}, nothing, 128, 0.25).key[0], (Widths{0, 0, 0, 0}));
  }
}

// Heads of one side count each with its own noise.
TEST(Waterfill, OneNoisyHeadRaisesTheSide) {
  SideEnergy quiet = blocks(1, 0.1, 0.01, 0.001), noisy = quiet;
  quiet.heads.push_back(quiet.heads[0]);
  noisy.heads.push_back({{1, 0.1, 0.01, 0.001}, {5.0, 0, 0, 0}});
  const Widths w{1, 1, 0, 0};
  const double linear = predicted_error(quiet, w) / 2.0, s2 = 5.0 * 0.571;
  EXPECT_NEAR(predicted_error(noisy, w), linear * (1.0 + (std::exp(s2) - 1.0) / s2), 1e-12);
}

TEST(Waterfill, RefusesBudgetsThatCannotBeMet) {
  const std::vector<SideEnergy> flat(1, blocks(1, 1, 1, 1));
  for (const double bits : {0.1, 4.3, -1.0, std::nan("")}) {
    try {
      waterfill(flat, flat, 128, bits);
      FAIL() << bits;
    } catch (const UsageError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr("is not possible"));
    }
  }
}

}  // namespace
}  // namespace oscar
