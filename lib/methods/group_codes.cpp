#include "methods/group_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "codec/codec.h"
#include "codec/row_math.h"
#include "layout/float16.h"

namespace oscar::group_codes {
namespace {

constexpr float kLargestHalf = 65504.0f;

struct Range {
  float low, high;
};

constexpr std::int64_t kLanes = 16;

// Uses lanes, because a single chain of comparisons would be serial; the result does not depend on order.
OSCAR_VECTOR_CLONES Range range_of(const float* x, std::int64_t n) {
  float low[kLanes], high[kLanes];
  std::fill_n(low, kLanes, x[0]);
  std::fill_n(high, kLanes, x[0]);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      low[l] = x[i + l] < low[l] ? x[i + l] : low[l];
      high[l] = x[i + l] > high[l] ? x[i + l] : high[l];
    }
  }
  for (; i < n; ++i) {
    low[0] = x[i] < low[0] ? x[i] : low[0];
    high[0] = x[i] > high[0] ? x[i] : high[0];
  }
  return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}

OSCAR_VECTOR_CLONES void uniform_codes(const float* x, std::int64_t n, float low, float scale, float top,
                                       std::uint8_t* codes) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float code = std::nearbyint((x[i] - low) / scale);
    codes[i] = static_cast<std::uint8_t>(static_cast<int>(code > 0.0f ? (code < top ? code : top) : 0.0f));
  }
}

OSCAR_VECTOR_CLONES void decode(float scale, float low, const std::uint8_t* codes, std::int64_t n, float* x) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(codes[i]) * scale + low;
}

OSCAR_VECTOR_CLONES void symmetric4_rows(float* x, std::int64_t n, float inverse, float stored) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float code = std::trunc(x[i] * inverse + 8.5f);
    x[i] = ((code < 15.0f ? code : 15.0f) - 8.0f) * stored;
  }
}

// Holds codes of a group between encoder and decoder.
class CodeBuffer {
 public:
  explicit CodeBuffer(std::int64_t n) {
    if (n > std::ssize(small_)) large_.resize(static_cast<std::size_t>(n));
  }
  std::uint8_t* data() { return large_.empty() ? small_ : large_.data(); }

 private:
  std::uint8_t small_[256];
  std::vector<std::uint8_t> large_;
};

}  // namespace

float stored_half(float value) { return round_to_float16(std::clamp(value, -kLargestHalf, kLargestHalf)); }

void uniform(float* x, std::int64_t n, int bits) {
  const Range r = range_of(x, n);
  const float top = static_cast<float>((1 << bits) - 1);
  const float scale = stored_half((r.high - r.low) / top), low = stored_half(r.low);
  if (!(scale > 0)) {
    std::fill_n(x, n, low);
    return;
  }
  CodeBuffer codes(n);
  uniform_codes(x, n, low, scale, top, codes.data());
  decode(scale, low, codes.data(), n, x);
}

void symmetric4(float* x, std::int64_t n) {
  float extreme = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float scale = extreme / -8.0f, stored = stored_half(scale);
  symmetric4_rows(x, n, scale != 0 ? 1.0f / scale : 0.0f, stored);
}

OSCAR_VECTOR_CLONES void float8_e4m3(float* x, std::int64_t n) {
  constexpr float kLargest = 448.0f;
  for (std::int64_t i = 0; i < n; ++i) {
    const float size = std::fabs(x[i]), magnitude = size < kLargest ? size : kLargest;
    // Step is 2^(e - 3) in [2^e, 2^(e+1)), e >= -6; below 2^-6 the subnormal step 2^-9.
    const std::int32_t exponent = std::max(std::bit_cast<std::int32_t>(magnitude) >> 23, 127 - 6);
    const float step = std::bit_cast<float>((exponent - 3) << 23);
    const float code = std::nearbyint(magnitude / step) * step;
    x[i] = std::copysign(code < kLargest ? code : kLargest, x[i]);
  }
}

float float8_e4m3(float value) {
  float8_e4m3(&value, 1);
  return value;
}

}  // namespace oscar::group_codes
