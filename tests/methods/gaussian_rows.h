// Independent N(0, 1) rows, and the figures that describe a quantizer on them.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "base/random.h"

namespace oscar {

inline std::vector<float> gaussian(std::int64_t count, std::uint64_t seed) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double u = 1.0 - random_unit(seed, 1, i), v = random_unit(seed, 2, i);
    x[i] = static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
  }
  return x;
}

struct CodeFigures {
  double relative_mse = 0;  // |x - y|^2 / |x|^2
  double cosine = 0;        // <x, y> / |x| |y|
  double gain = 0;          // <x, y> / |x|^2
};

inline CodeFigures figures(const std::vector<float>& x, const std::vector<float>& y) {
  double xx = 0, xy = 0, yy = 0, error = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double a = x[i], b = y[i];
    xx += a * a, xy += a * b, yy += b * b, error += (a - b) * (a - b);
  }
  return {error / xx, xy / std::sqrt(xx * yy), xy / xx};
}

}  // namespace oscar
