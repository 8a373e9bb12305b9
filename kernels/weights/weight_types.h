// What the kernels of stored weights share: types of scales and of results. Raw pointers, no LibTorch.
#pragma once

#include <cstdint>

namespace oscar::kernels {

// Of the weight that is written.
enum class WeightType : std::int32_t { kFloat32, kBFloat16, kFloat16 };

// Of stored scales. E4M3: sign, 4 bits of exponent, 3 of mantissa, no infinity. E8M0: 2^(byte - 127).
enum class ScaleType : std::int32_t { kFloat32, kBFloat16, kFloat16, kE4M3, kE8M0 };

}  // namespace oscar::kernels
