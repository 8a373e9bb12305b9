#include "kernels/decode/tile_phases.h"

#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace oscar::kernels {
namespace {

using Column = std::array<double, kPageTokens>;

double dot(const Column& x, const Column& y) {
  double sum = 0.0;
  for (int j = 0; j < kPageTokens; ++j) sum += x[j] * y[j];
  return sum;
}

// An orthonormal basis of the columns of C by Gram-Schmidt, the longest remainder first; columns become their
// remainders. The matrix is small and its rank falls fast, so a singular value decomposition would give no better
// basis.
std::vector<Column> basis_of(std::vector<Column>& columns) {
  std::vector<Column> basis(kPageRank, Column{});
  for (Column& direction : basis) {
    const auto longest = std::max_element(columns.begin(), columns.end(),
                                          [](const Column& x, const Column& y) { return dot(x, x) < dot(y, y); });
    direction = *longest;
    for (const Column& other : basis) {  // once more against rounding; later directions are zero
      if (&other == &direction) break;
      const double shared = dot(other, direction);
      for (int j = 0; j < kPageTokens; ++j) direction[j] -= shared * other[j];
    }
    const double length = std::sqrt(dot(direction, direction));
    if (length < 1e-12) {  // C has a smaller rank: partial RoPE
      direction = Column{};
      continue;
    }
    for (double& x : direction) x /= length;
    for (Column& column : columns) {
      const double shared = dot(direction, column);
      for (int j = 0; j < kPageTokens; ++j) column[j] -= shared * direction[j];
    }
  }
  return basis;
}

std::uint16_t half_bits(double x) { return __half_as_ushort(__float2half_rn(static_cast<float>(x))); }

// Fills operand A with element(row, column) of a matrix of 16 `tiles` rows and 16 `steps` columns: fragment_pages.h.
// The low terms are `to_low` elements after the high ones.
template <class F>
void fill_operand(int tiles, int steps, std::uint16_t* table, int to_low, F&& element) {
  for (int tile = 0; tile < tiles; ++tile)
    for (int step = 0; step < steps; ++step)
      for (int lane = 0; lane < 32; ++lane)
        for (int r = 0; r < 4; ++r)  // registers
          for (int sub = 0; sub < 2; ++sub) {
            const double x =
                element(16 * tile + lane / 4 + 8 * (r & 1), 16 * step + 8 * (r >> 1) + 2 * (lane % 4) + sub);
            *table = half_bits(x);
            table[to_low] = half_bits(x - __half2float(__ushort_as_half(*table)));
            ++table;
          }
}

}  // namespace

float fill_tile_phases(int head_dim, const float* frequencies, std::uint16_t* tables) {
  const int pairs = head_dim / 2;
  std::vector<Column> phases(static_cast<std::size_t>(head_dim));  // C: cosines, then sines
  for (int f = 0; f < pairs; ++f)
    for (int j = 0; j < kPageTokens; ++j) {
      const double angle = static_cast<double>(frequencies[f]) * j;
      phases[f][j] = std::cos(angle), phases[pairs + f][j] = std::sin(angle);
    }
  std::vector<Column> rest = phases;
  const std::vector<Column> basis = basis_of(rest);
  double error = 0.0;
  for (const Column& column : rest)
    for (const double x : column) error = std::max(error, std::abs(x));

  fill_operand(kPageRank / 16, head_dim / 16, tables, phase_term_count(head_dim), [&](int direction, int column) {
    const int step = column / 16, inside = column % 16;
    const int pair = 16 * (step / 2) + 4 * (inside % 8 / 2) + 2 * (step % 2) + inside / 8;
    return dot(basis[direction], phases[pair + (inside % 2) * pairs]);
  });
  fill_operand(kPageTokens / 16, kPageRank / 16, tables + projection_count(head_dim), phase_term_count(head_dim),
               [&](int token, int k) { return kPhaseUnit * basis[page_direction(k)][token]; });
  return static_cast<float>(error);
}

}  // namespace oscar::kernels
