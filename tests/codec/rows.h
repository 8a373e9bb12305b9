// Rows for codec tests: deterministic Gaussian numbers, rounded to BF16 as cached rows are.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

#include "base/random.h"
#include "codec/codec.h"
#include "layout/float16.h"
#include "support/bfloat16.h"

namespace oscar {

inline float gaussian(std::uint64_t seed, std::uint64_t n) {  // Box-Muller
  const double u = 1.0 - random_unit(seed, 1, n), v = random_unit(seed, 2, n);
  return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
}

inline std::vector<float> gaussian_rows(std::uint64_t seed, std::int64_t n, int d, float mean = 0.0f) {
  std::vector<float> rows(static_cast<std::size_t>(n * d));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = round_to_bfloat16(gaussian(seed, i) + mean);
  return rows;
}

struct ErrorStats {
  double relative_mse = 0, gain = 0;  // |x - xhat|^2 / |x|^2 and <x, xhat> / |x|^2
};

inline ErrorStats error_of(const std::vector<float>& x, const std::vector<float>& y) {
  double error = 0, power = 0, dot = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double a = x[i], b = y[i];
    error += (a - b) * (a - b), power += a * a, dot += a * b;
  }
  return {error / power, dot / power};
}

inline std::vector<float> quantized(const RowCodec& codec, const std::vector<float>& rows) {
  std::vector<float> out(rows.size());
  const auto n = static_cast<std::int64_t>(rows.size()) / codec.code.head_dim;
  quantize_rows(codec, rows.data(), n, 0, out.data(), 0);
  return out;
}

}  // namespace oscar
