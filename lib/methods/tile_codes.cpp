#include "methods/tile_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <mutex>
#include <numbers>
#include <vector>

#include "codec/row_math.h"
#include "methods/group_codes.h"

namespace oscar {
namespace {

void code_group(const SideCode& side, float* x, std::int64_t n) {
  switch (side.code) {
    case CacheCode::kUniform:
      return group_codes::uniform(x, n, side.bits);
    case CacheCode::kSymmetric4:
      return group_codes::symmetric4(x, n);
    case CacheCode::kFloat8:
      return group_codes::float8_e4m3(x, n);
    case CacheCode::kLloydMax:
      const std::int64_t boosted = std::llround(side.boosted_share * static_cast<double>(n));
      if (boosted > 0) lloyd_max_code(x, boosted, side.boosted_bits);
      return lloyd_max_code(x + boosted, n - boosted, side.bits);
  }
}

void code_channels(const SideCode& side, float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride) {
  std::vector<float> column(static_cast<std::size_t>(side.group));
  for (std::int64_t first = 0; first + side.group <= tokens; first += side.group) {
    for (std::int64_t c = 0; c < d; ++c) {
      float* values = tile + first * stride + c;
      for (std::int64_t t = 0; t < side.group; ++t) column[static_cast<std::size_t>(t)] = values[t * stride];
      code_group(side, column.data(), side.group);
      for (std::int64_t t = 0; t < side.group; ++t) values[t * stride] = column[static_cast<std::size_t>(t)];
    }
  }
}

}  // namespace

void code_tile(const SideCode& side, float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride) {
  if (side.axis == CacheAxis::kChannel) return code_channels(side, tile, tokens, d, stride);
  const std::int64_t group = side.group == 0 ? d : std::min<std::int64_t>(side.group, d);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < d; c += group) code_group(side, tile + t * stride + c, group);
  }
}

namespace {

double density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi); }
double upper_tail(double x) { return 0.5 * std::erfc(x / std::numbers::sqrt2); }

// Mean of N(0, 1) between a and b, 0 <= a < b.
double centroid(double a, double b) {
  const double mass = upper_tail(a) - (std::isinf(b) ? 0.0 : upper_tail(b));
  return (density(a) - (std::isinf(b) ? 0.0 : density(b))) / mass;
}

std::vector<double> iterate(int bits) {
  const std::size_t half = std::size_t{1} << (bits - 1);
  std::vector<double> positive(half);
  for (std::size_t i = 0; i < half; ++i) positive[i] = 3.0 * (static_cast<double>(i) + 0.5) / static_cast<double>(half);
  for (int round = 0; round < 20000; ++round) {  // converges linearly; 8 bits need a few thousand rounds
    double moved = 0;
    std::vector<double> next(half);
    for (std::size_t i = 0; i < half; ++i) {
      const double a = i == 0 ? 0.0 : 0.5 * (positive[i - 1] + positive[i]);
      const double b = i + 1 == half ? INFINITY : 0.5 * (positive[i] + positive[i + 1]);
      next[i] = centroid(a, b);
      moved = std::max(moved, std::fabs(next[i] - positive[i]));
    }
    positive = next;
    if (moved < 1e-13) break;
  }
  std::vector<double> all;
  for (std::size_t i = half; i-- > 0;) all.push_back(-positive[i]);
  all.insert(all.end(), positive.begin(), positive.end());
  return all;
}

struct Table {
  const std::vector<double>& centroid;
  std::vector<float> middle;  // midpoints between neighbors; a value on one goes to the lower centroid
};

const Table& table_of(int bits) {
  static std::array<std::unique_ptr<const Table>, 9> tables;
  static std::array<std::once_flag, 9> once;
  const auto b = static_cast<std::size_t>(bits);
  std::call_once(once.at(b), [&] {
    const std::vector<double>& c = lloyd_max_centroids(bits);
    std::vector<float> middle;
    for (std::size_t i = 0; i + 1 < c.size(); ++i) middle.push_back(static_cast<float>(0.5 * (c[i] + c[i + 1])));
    tables[b] = std::make_unique<const Table>(Table{c, std::move(middle)});
  });
  return *tables[b];
}

constexpr std::int64_t kStrip = 64;

// Counts the midpoints below x up for each x: the index of its centroid, without a branch.
OSCAR_VECTOR_CLONES void nearest(const float* x, std::int64_t count, float up, const std::vector<float>& middle,
                                 std::int32_t* index) {
  float y[kStrip];
  for (std::int64_t i = 0; i < count; ++i) y[i] = x[i] * up;
  std::fill_n(index, count, 0);
  for (const float m : middle) {
    for (std::int64_t i = 0; i < count; ++i) index[i] += y[i] > m ? 1 : 0;
  }
}

OSCAR_VECTOR_CLONES double sum_of_squares(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 8;
  double lane[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lane[l] += static_cast<double>(x[i + l]) * x[i + l];
  }
  for (; i < n; ++i) lane[0] += static_cast<double>(x[i]) * x[i];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

}  // namespace

const std::vector<double>& lloyd_max_centroids(int bits) {
  static std::array<std::vector<double>, 9> tables;
  static std::array<std::once_flag, 9> once;
  const auto b = static_cast<std::size_t>(bits);
  std::call_once(once.at(b), [&] { tables[b] = iterate(bits); });
  return tables[b];
}

void lloyd_max_code(float* x, std::int64_t n, int bits) {
  const double norm = std::sqrt(sum_of_squares(x, n));
  const float stored = group_codes::stored_half(static_cast<float>(norm));
  if (norm == 0) return;
  const Table& table = table_of(bits);
  const auto up = static_cast<float>(std::sqrt(static_cast<double>(n)) / norm);
  for (std::int64_t first = 0; first < n; first += kStrip) {
    const std::int64_t count = std::min(kStrip, n - first);
    std::int32_t index[kStrip];
    nearest(x + first, count, up, table.middle, index);
    for (std::int64_t i = 0; i < count; ++i) {
      x[first + i] = static_cast<float>(table.centroid[static_cast<std::size_t>(index[i])]);
    }
  }
  const double down = 1.0 / std::sqrt(static_cast<double>(n));
  for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] * down * stored);
}

}  // namespace oscar
