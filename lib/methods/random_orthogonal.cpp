#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "base/random.h"
#include "methods/engine.h"

namespace oscar {

at::Tensor random_orthogonal(std::int64_t n, std::uint64_t seed) {
  at::Tensor matrix = at::empty({n, n}, at::kDouble);
  auto* m = matrix.mutable_data_ptr<double>();
  for (std::int64_t i = 0; i < n * n; ++i) {  // Box-Muller
    const auto at = static_cast<std::uint64_t>(i);
    const double u = 1.0 - random_unit(seed, 0, at), v = random_unit(seed, 1, at);
    m[i] = std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
  }
  // Gram-Schmidt on rows, each twice: as accurate as Householder, and R has a positive diagonal.
  for (std::int64_t r = 0; r < n; ++r) {
    double* row = m + r * n;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t k = 0; k < r; ++k) {
        const double* other = m + k * n;
        double dot = 0;
        for (std::int64_t c = 0; c < n; ++c) dot += row[c] * other[c];
        for (std::int64_t c = 0; c < n; ++c) row[c] -= dot * other[c];
      }
    }
    double squares = 0;
    for (std::int64_t c = 0; c < n; ++c) squares += row[c] * row[c];
    for (std::int64_t c = 0; c < n; ++c) row[c] /= std::sqrt(squares);
  }
  return matrix;
}

}  // namespace oscar
