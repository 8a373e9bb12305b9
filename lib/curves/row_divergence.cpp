#include "curves/row_divergence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/vector_math.h"

namespace oscar {
namespace {

using vector_math::Floats;
using vector_math::kLanes;

// FP32 sums over this many vectors are short enough to keep their digits; FP64 adds them up.
constexpr std::int64_t kRun = 64 * kLanes;

struct Sums {
  double mass = 0.0, product = 0.0;
};

// The last n floats, followed by zeros.
OSCAR_VECTOR_INLINE void load_part(Floats& x, const float* from, std::int64_t n) {
  x = Floats{};
  std::memcpy(&x, from, static_cast<std::size_t>(n) * sizeof(float));
}

OSCAR_VECTOR_INLINE void add_sums(const Floats& p, const Floats& change, Floats& mass, Floats& product) {
  mass += p, product += p * change;
}

OSCAR_FLOAT_CLONES Sums sums_of(const float* p, const float* change, std::int64_t n) {
  Sums sums;
  Floats a, b;
  for (std::int64_t start = 0; start < n; start += kRun) {
    const std::int64_t end = std::min(start + kRun, n);
    Floats mass = {}, product = {};
    std::int64_t i = start;
    for (; i + kLanes <= end; i += kLanes) {
      vector_math::load(a, p + i);
      vector_math::load(b, change + i);
      add_sums(a, b, mass, product);
    }
    if (i < end) {
      load_part(a, p + i, end - i);
      load_part(b, change + i, end - i);
      add_sums(a, b, mass, product);
    }
    sums.mass += vector_math::sum(mass), sums.product += vector_math::sum(product);
  }
  return sums;
}

// p (e^(D - m) - 1); overwrites change.
OSCAR_VECTOR_INLINE void add_excess(const Floats& p, Floats& change, float mean, Floats& sum) {
  change -= mean;
  vector_math::expm1_in_place(change);
  sum += p * change;
}

// The sum of p (e^(D - m) - 1).
OSCAR_FLOAT_CLONES double excess_of(const float* p, const float* change, std::int64_t n, float mean) {
  double total = 0.0;
  Floats a, b;
  for (std::int64_t start = 0; start < n; start += kRun) {
    const std::int64_t end = std::min(start + kRun, n);
    Floats sum = {};
    std::int64_t i = start;
    for (; i + kLanes <= end; i += kLanes) {
      vector_math::load(a, p + i);
      vector_math::load(b, change + i);
      add_excess(a, b, mean, sum);
    }
    if (i < end) {
      load_part(a, p + i, end - i);
      load_part(b, change + i, end - i);
      add_excess(a, b, mean, sum);
    }
    total += vector_math::sum(sum);
  }
  return total;
}

}  // namespace

double row_divergence(const float* p, const float* change, std::int64_t n) {
  const Sums sums = sums_of(p, change, n);
  const float mean = static_cast<float>(sums.product / sums.mass);
  const double kl = std::log1p(excess_of(p, change, n, mean) / sums.mass);
  return kl < 0.0 ? 0.0 : kl;
}

}  // namespace oscar
