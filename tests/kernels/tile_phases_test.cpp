// The tables by which decode attention adds position logits, on the CPU: the product of the two, with the rounding that
// the kernels do, is <u, c_(p0 + j)> of every token of a page.
#include "kernels/decode/tile_phases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "layout/float16.h"

namespace oscar::kernels {
namespace {

std::vector<float> rope(int head_dim, double base, int rotated) {
  std::vector<float> frequencies(head_dim / 2, 0.0f);
  for (int f = 0; f < rotated / 2; ++f) frequencies[f] = static_cast<float>(std::pow(base, -2.0 * f / rotated));
  return frequencies;
}

// Element (row, column) of an operand A of `steps` steps of 16 columns.
double element(const std::uint16_t* table, int steps, int row, int column) {
  const int lane = row % 8 * 4 + column % 8 / 2, reg = row / 8 % 2 + column / 8 % 2 * 2;
  return float16_value(table[((row / 16 * steps + column / 16) * 32 + lane) * 8 + 2 * reg + column % 2]);
}

struct Errors {
  double table, logits;  // of the logits: the largest, in parts of what is allowed
};

// One query of a page at p0, whose elements have the standard deviation `size`.
Errors errors(int head_dim, const std::vector<float>& frequencies, double p0, unsigned seed, double size = 1.0) {
  std::vector<std::uint16_t> tables(tile_phases_count(head_dim));
  Errors out{fill_tile_phases(head_dim, frequencies.data(), tables.data()), 0.0};
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const int pairs = head_dim / 2;
  std::vector<double> u(head_dim), turned(head_dim);
  double length = 0.0;
  for (double& x : u) x = size * normal(random), length += x * x;
  for (int f = 0; f < pairs; ++f) {
    const double cosine = std::cos(frequencies[f] * p0), sine = std::sin(frequencies[f] * p0);
    turned[f] = u[f] * cosine + u[pairs + f] * sine;
    turned[pairs + f] = u[pairs + f] * cosine - u[f] * sine;
  }
  const auto rounded = [](double x) { return static_cast<double>(round_to_float16(static_cast<float>(x))); };
  const auto low = [&](double x) { return rounded(x - rounded(x)); };
  // The product of a table's element, at the place of its high term, and x, both in two terms.
  const auto product = [&](const std::uint16_t* table, int steps, int row, int column, double x) {
    const double high = element(table, steps, row, column);
    return (high + element(table + phase_term_count(head_dim), steps, row, column)) * rounded(x) + high * low(x);
  };
  std::vector<double> y(kPageRank, 0.0);  // as the heads' operand of the second step has them
  for (int k = 0; k < kPageRank; ++k) {
    for (int column = 0; column < head_dim; ++column) {
      const int step = column / 16, inside = column % 16;
      const int pair = 16 * (step / 2) + 4 * (inside % 8 / 2) + 2 * (step % 2) + inside / 8;
      y[k] += product(tables.data(), head_dim / 16, page_direction(k), column,
                      kQueryUnit * turned[pair + inside % 2 * pairs]);
    }
  }
  for (int j = 0; j < kPageTokens; ++j) {
    double found = 0.0, expected = 0.0;
    for (int k = 0; k < kPageRank; ++k)
      found += product(tables.data() + projection_count(head_dim), kPageRank / 16, j, k, y[k]);
    for (int f = 0; f < pairs; ++f) {
      const double angle = frequencies[f] * (p0 + j);
      expected += u[f] * std::cos(angle) + u[pairs + f] * std::sin(angle);
    }
    out.logits = std::max(out.logits, std::abs(found - expected));
  }
  // The rank of the tables rules, and two terms keep 2^-22 of sums in which nothing exceeds |u|. A low term below
  // FP16's smallest number, 2^-24, is lost: 3e-4 of a logit before the softmax scale.
  out.logits /= std::sqrt(length) * (1e-6 + 2 * out.table) + 3e-4;
  return out;
}

TEST(TilePhases, EveryHeadSizeAndBase) {
  unsigned seed = 0;
  for (const int d : {64, 128, 256, 512})
    for (const double base : {1e4, 5e5, 1e6, 1e7})
      for (const int rotated : {d, d / 2})
        for (const double p0 : {0.0, 64.0, 5000.0, 131008.0}) {
          const Errors e = errors(d, rope(d, base, rotated), p0, ++seed);
          EXPECT_LT(e.table, d == 512 ? 4e-6 : 1e-6) << d << ' ' << base << ' ' << rotated;
          EXPECT_LT(e.logits, 1.0) << d << ' ' << base << ' ' << rotated << ' ' << p0;
        }
}

// A query of Qwen2.5-Coder-1.5B, whose keys have a mean of 354 before RoPE, has elements of u up to 30,000 and logits
// of 12,000. In FP16 alone the sums overflowed: the output was not a number.
TEST(TilePhases, LargeMeansOfKeys) {
  for (const int d : {64, 128, 256, 512})
    for (const double p0 : {0.0, 640.0, 32000.0}) {
      const Errors e = errors(d, rope(d, 1e6, d), p0, 5, 30000.0);
      EXPECT_LT(e.logits, 1.0) << d << ' ' << p0;
    }
}

// Faster phases than those of RoPE do not fit the rank: the returned error says so, which is why they are refused.
TEST(TilePhases, FasterThanOneRadianDoesNotFit) {
  std::vector<float> frequencies = rope(128, 1e4, 128);
  for (float& x : frequencies) x *= 3.0f;
  EXPECT_GT(errors(128, frequencies, 64.0, 1).table, 0.1);
}

TEST(TilePhases, DirectionsAreAPermutation) {
  std::vector<int> seen(kPageRank, 0);
  for (int k = 0; k < kPageRank; ++k) ++seen[page_direction(k)];
  EXPECT_EQ(seen, std::vector<int>(kPageRank, 1));
}

}  // namespace
}  // namespace oscar::kernels
