// Types that the weight kernels share: types of scales and of results. Raw pointers, no LibTorch.
#pragma once

#include <cstdint>

namespace oscar::kernels {

// Type of the weight that is written.
enum class WeightType : std::int32_t { kFloat32, kBFloat16, kFloat16 };

// Type of stored scales. E4M3: sign, 4 exponent bits, 3 mantissa bits, no infinity. E8M0: 2^(byte - 127).
enum class ScaleType : std::int32_t { kFloat32, kBFloat16, kFloat16, kE4M3, kE8M0 };

}  // namespace oscar::kernels
