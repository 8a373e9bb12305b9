// Codes of one group of values that share a scale. Functions with an in-out `x` replace its n values by the decoded
// ones. Codes are computed from the parameters as stored (FP16, saturating), ties to even.
#pragma once

#include <cstdint>

namespace oscar::group_codes {

float stored_half(float value);  // rounded to FP16; beyond its range: the largest finite value

// Parameters stored for a group: xhat = code scale + offset, both FP16 values.
struct GroupParams {
  float scale = 0, offset = 0;
};
GroupParams encode_uniform(const float* x, std::int64_t n, int bits, std::uint8_t* codes);
GroupParams encode_integer_zero(const float* x, std::int64_t n, int bits, float clip, std::uint8_t* codes);

// The norm that divides a token before coding: over all heads, n values; at least 1e-4 (OScaR).
float token_norm(const float* row, std::int64_t n);

void uniform(float* x, std::int64_t n, int bits);
void integer_zero(float* x, std::int64_t n, int bits, float clip);
void symmetric4(float* x, std::int64_t n);   // ggml q4_0
void float8_e4m3(float* x, std::int64_t n);  // nearest, ties to even, saturating at +-448
float float8_e4m3(float value);

}  // namespace oscar::group_codes
