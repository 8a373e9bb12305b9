// Codes of one group of values that share a scale. Functions with an in-out `x` replace its n values by the decoded
// ones. Codes are computed from the parameters as stored (FP16, saturating), ties to even.
#pragma once

#include <cstdint>

namespace oscar::group_codes {

float stored_half(float value);  // rounded to FP16; beyond its range: the largest finite value

void uniform(float* x, std::int64_t n, int bits);
void symmetric4(float* x, std::int64_t n);   // ggml q4_0
void float8_e4m3(float* x, std::int64_t n);  // nearest, ties to even, saturating at +-448
float float8_e4m3(float value);

}  // namespace oscar::group_codes
