#include "methods/group_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "codec/codec.h"

namespace oscar::group_codes {
namespace {

constexpr float kLargestHalf = 65504.0f;

struct Range {
  float low, high;
};

Range range_of(const float* x, std::int64_t n) {
  const auto [low, high] = std::minmax_element(x, x + n);
  return {*low, *high};
}

void decode(const GroupParams& params, const std::uint8_t* codes, std::int64_t n, float* x) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(codes[i]) * params.scale + params.offset;
}

}  // namespace

float stored_half(float value) { return round_to_float16(std::clamp(value, -kLargestHalf, kLargestHalf)); }

float token_norm(const float* row, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(row[i]) * row[i];
  return static_cast<float>(std::sqrt(std::max(sum, 1e-8)));
}

GroupParams encode_uniform(const float* x, std::int64_t n, int bits, std::uint8_t* codes) {
  const Range r = range_of(x, n);
  const float top = static_cast<float>((1 << bits) - 1);
  const float scale = stored_half((r.high - r.low) / top), low = stored_half(r.low);
  for (std::int64_t i = 0; i < n; ++i) {
    const float code = scale > 0 ? std::clamp(std::nearbyint((x[i] - low) / scale), 0.0f, top) : 0.0f;
    codes[i] = static_cast<std::uint8_t>(code);
  }
  return {scale, low};
}

GroupParams encode_integer_zero(const float* x, std::int64_t n, int bits, float clip, std::uint8_t* codes) {
  Range r = range_of(x, n);
  r.low *= clip, r.high *= clip;
  if (r.low == 0 && r.high == 0) r = {-1.0f, 1.0f};
  const float top = static_cast<float>((1 << bits) - 1);
  const float scale = stored_half((r.high - r.low) / top);
  // A constant group, or one too narrow for FP16: the reader gets the offset, which is all that is stored.
  if (!(scale > 0)) {
    std::fill_n(codes, n, std::uint8_t{0});
    return {0.0f, stored_half(r.low)};
  }
  const float zero = std::nearbyint(-r.low / scale);
  for (std::int64_t i = 0; i < n; ++i) {
    codes[i] = static_cast<std::uint8_t>(std::clamp(std::nearbyint(x[i] / scale) + zero, 0.0f, top));
  }
  return {scale, stored_half(-zero * scale)};  // the offset is stored in place of z
}

void uniform(float* x, std::int64_t n, int bits) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
  decode(encode_uniform(x, n, bits, codes.data()), codes.data(), n, x);
}

void integer_zero(float* x, std::int64_t n, int bits, float clip) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
  decode(encode_integer_zero(x, n, bits, clip, codes.data()), codes.data(), n, x);
}

void symmetric8(float* x, std::int64_t n) {
  float largest = 0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float scale = largest / 127.0f, inverse = scale > 0 ? 1.0f / scale : 0.0f, stored = stored_half(scale);
  for (std::int64_t i = 0; i < n; ++i) x[i] = std::round(x[i] * inverse) * stored;  // ties away from zero, as in C
}

void symmetric4(float* x, std::int64_t n) {
  float extreme = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float scale = extreme / -8.0f, inverse = scale != 0 ? 1.0f / scale : 0.0f, stored = stored_half(scale);
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = (std::min(std::trunc(x[i] * inverse + 8.5f), 15.0f) - 8.0f) * stored;
  }
}

float float8_e4m3(float value) {
  constexpr float kLargest = 448.0f;
  const float magnitude = std::min(std::fabs(value), kLargest);
  // Steps of 2^(e - 3) in [2^e, 2^(e+1)), e >= -6; below 2^-6 the subnormal step 2^-9.
  int exponent = 0;
  std::frexp(magnitude, &exponent);  // magnitude = f 2^exponent, f in [1/2, 1)
  const float step = std::ldexp(1.0f, std::max(exponent - 1, -6) - 3);
  return std::copysign(std::min(std::nearbyint(magnitude / step) * step, kLargest), value);
}

}  // namespace oscar::group_codes
