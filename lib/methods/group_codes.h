// Codes of one group of values that share a scale. Every function replaces n values by what a reader gets back. The
// codes are computed from the parameters as they are stored (FP16, saturating), ties round to even.
#pragma once

#include <cstdint>

namespace oscar::group_codes {

float stored_half(float value);  // through FP16; beyond its range: its largest finite value

// What is stored of a group besides its codes: xhat = code scale + offset, both FP16 values.
struct GroupParams {
  float scale = 0, offset = 0;
};
GroupParams encode_uniform(const float* x, std::int64_t n, int bits, std::uint8_t* codes);
GroupParams encode_integer_zero(const float* x, std::int64_t n, int bits, float clip, std::uint8_t* codes);

// What a token is divided by before it is coded: its norm over all heads, n values; never below 1e-4 (OScaR).
float token_norm(const float* row, std::int64_t n);

void uniform(float* x, std::int64_t n, int bits);
void integer_zero(float* x, std::int64_t n, int bits, float clip);
void symmetric4(float* x, std::int64_t n);   // ggml q4_0
void float8_e4m3(float* x, std::int64_t n);  // nearest, ties to even, saturating at +-448
float float8_e4m3(float value);

}  // namespace oscar::group_codes
