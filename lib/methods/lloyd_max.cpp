#include "methods/lloyd_max.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <numbers>

#include "methods/group_codes.h"

namespace oscar {
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

}  // namespace

const std::vector<double>& lloyd_max_centroids(int bits) {
  static std::array<std::vector<double>, 9> tables;
  static std::array<std::once_flag, 9> once;
  const auto b = static_cast<std::size_t>(bits);
  std::call_once(once.at(b), [&] { tables[b] = iterate(bits); });
  return tables[b];
}

void lloyd_max_code(float* x, std::int64_t n, int bits, bool unit_norm) {
  double squares = 0;
  for (std::int64_t i = 0; i < n; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double norm = std::sqrt(squares);
  const float stored = group_codes::stored_half(static_cast<float>(norm));
  if (norm == 0) return;
  const std::vector<double>& centroids = lloyd_max_centroids(bits);
  const double up = std::sqrt(static_cast<double>(n)) / norm;
  double decoded = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double y = x[i] * up;
    auto above = std::lower_bound(centroids.begin(), centroids.end(), y);
    if (above == centroids.end()) --above;
    if (above != centroids.begin() && y - *(above - 1) <= *above - y) --above;
    x[i] = static_cast<float>(*above);
    decoded += *above * *above;
  }
  const double down = unit_norm ? 1.0 / std::sqrt(decoded) : 1.0 / std::sqrt(static_cast<double>(n));
  for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] * down * stored);
}

}  // namespace oscar
