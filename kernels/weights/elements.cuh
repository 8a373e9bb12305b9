// Scales as FP32, and stores of eight consecutive values.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/weights/weight_types.h"

namespace oscar::kernels {

__device__ __forceinline__ float e4m3_value(std::uint8_t byte) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3)));
}

__device__ __forceinline__ float scale_value(const void* scale, std::int64_t index, ScaleType type) {
  switch (type) {
    case ScaleType::kFloat32:
      return static_cast<const float*>(scale)[index];
    case ScaleType::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(scale)[index]);
    case ScaleType::kFloat16:
      return __half2float(static_cast<const __half*>(scale)[index]);
    case ScaleType::kE4M3:
      return e4m3_value(static_cast<const std::uint8_t*>(scale)[index]);
    case ScaleType::kE8M0:
      break;
  }
  const std::uint32_t exponent = static_cast<const std::uint8_t*>(scale)[index];
  return __uint_as_float(exponent == 0 ? 0x00400000u : exponent << 23);  // 2^-127 is subnormal
}

template <class T>
__device__ __forceinline__ T rounded(float value);
template <>
__device__ __forceinline__ float rounded<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ __nv_bfloat16 rounded<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ __forceinline__ __half rounded<__half>(float value) {
  return __float2half_rn(value);
}

// Stores eight consecutive values; `to` is 16-byte aligned.
template <class T>
__device__ __forceinline__ void store_eight(T* to, const float (&values)[8]) {
  union {
    T elements[8];
    uint4 words[sizeof(T) / 2];
  } packed;
#pragma unroll
  for (int i = 0; i < 8; ++i) packed.elements[i] = rounded<T>(values[i]);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 2); ++i) reinterpret_cast<uint4*>(to)[i] = packed.words[i];
}

// Calls of(T{}) for the type of the written weights.
template <class Of>
cudaError_t by_weight_type(WeightType type, Of of) {
  switch (type) {
    case WeightType::kFloat32:
      return of(float{});
    case WeightType::kBFloat16:
      return of(__nv_bfloat16{});
    case WeightType::kFloat16:
      return of(__half{});
  }
  return cudaErrorInvalidValue;
}

inline bool aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace oscar::kernels
