// Encoders of the uniform layout for one group in a warp; reference: lib/codec/uniform.cpp.
#pragma once

#include "kernels/quantize/row_ops.cuh"

namespace oscar::kernels::uniform {

using row::Range;

inline constexpr float kMaxOffset = 2048.0f;

// The 16-bit types of scale and zero point.
struct Float16 {
  static constexpr float kMinScale = 0x1p-24f, kMaxScale = 65504.0f;
  __device__ static std::uint16_t bits(float v) { return __half_as_ushort(__float2half_rn(v)); }
  __device__ static float value(std::uint16_t b) { return __half2float(__ushort_as_half(b)); }
};
struct BFloat16 {
  static constexpr float kMinScale = 0x1p-100f, kMaxScale = 0x1p96f;
  __device__ static std::uint16_t bits(float v) { return __bfloat16_as_ushort(__float2bfloat16_rn(v)); }
  __device__ static float value(std::uint16_t b) { return __bfloat162float(__ushort_as_bfloat16(b)); }
};

struct Params {
  std::uint16_t scale, zero;
};

template <class T>
__device__ inline std::uint16_t stored_scale(float scale) {
  const std::uint16_t bits = T::bits(scale < T::kMaxScale ? scale : T::kMaxScale);
  return T::value(bits) < T::kMinScale ? T::bits(T::kMinScale) : bits;
}

template <class T, int P>
__device__ inline Params encode_constant(Range range, int (&codes)[P]) {
  const float middle = 0.5f * range.low + 0.5f * range.high;
  const float magnitude = middle < 0.0f ? -middle : middle;
#pragma unroll
  for (int j = 0; j < P; ++j) codes[j] = 0;
  const float zero = magnitude < T::kMinScale ? 0.0f : (middle < 0.0f ? 1.0f : -1.0f);
  return {stored_scale<T>(magnitude), T::bits(zero)};
}

template <class T, int P>
__device__ inline Params encode_minmax(const float (&x)[P], Range range, int (&codes)[P]) {
  const float width = range.high - range.low;
  const std::uint16_t scale = stored_scale<T>((width > 1e-8f ? width : 1e-8f) / 3.0f);
  const float s = T::value(scale);
  const float offset = range.low < 0.0f ? -range.low : range.low;
  if (offset > kMaxOffset * s) return encode_constant<T>(range, codes);
  const std::uint16_t zero = T::bits(0.0f - range.low / s);
  const float z = T::value(zero);
#pragma unroll
  for (int j = 0; j < P; ++j) codes[j] = static_cast<int>(row::clamp(x[j] / s + z + 0.5f, 3.0f));
  return {scale, zero};
}

// Parts of the range that encode_search() tries, for lanes that need one each: constants with a lane's index would be
// copied to the stack.
__device__ const float kLaneFractions[16] = {1.0f, 0.95f, 0.9f, 0.85f, 0.8f, 0.75f, 0.7f, 0.65f,
                                             0.6f, 0.55f, 1.0f, 1.0f,  1.0f, 1.0f,  1.0f, 1.0f};

template <class T, int P>
__device__ inline Params encode_search(const float (&x)[P], int n, Range range, bool value_side, int (&codes)[P]) {
  const float width = range.high - range.low;
  if (!(width >= 0x1p-40f && width <= 0x1p40f)) return encode_minmax<T>(x, range, codes);
  const float count = static_cast<float>(n);
  const float mean = row::fixed_sum(x, n) / count;
  float y[P];
#pragma unroll
  for (int j = 0; j < P; ++j) y[j] = x[j] - mean;
  const float energy = row::fixed_dot(y, y, n);

  const float center = 0.5f * range.low + 0.5f * range.high;
  constexpr float kFractions[] = {1.0f, 0.95f, 0.9f, 0.85f, 0.8f, 0.75f, 0.7f, 0.65f, 0.6f, 0.55f};
  // Lanes 2 f and 2 f + 1 handle fraction f in the steps that are done once per warp.
  const int lane = static_cast<int>(threadIdx.x % 32);
  float fraction = kLaneFractions[lane / 2];
  float inverse = 1.0f / ((fraction * width) / 3.0f);
  float z[P];  // x; beyond the n-th value a number whose code is 0
#pragma unroll
  for (int j = 0; j < P; ++j) z[j] = lane + 32 * j < n ? x[j] : -0x1p100f;
  float dots[16] = {};
  int packed = 0;  // sum of codes, and of their squares 2^16 higher: both stay below 2^16 in a warp of 256 values
#pragma unroll
  for (int f = 0; f < 10; ++f) {
    const float low = center - kFractions[f] * (0.5f * width), step = __shfl_sync(row::kAll, inverse, 2 * f);
    float levels[P], counted = 0.0f;  // of at most 2^24: exact
#pragma unroll
    for (int j = 0; j < P; ++j) {
      levels[j] = row::level((z[j] - low) * step + 0.5f, 3.0f);
      counted = __fmaf_rn(levels[j], __fmaf_rn(levels[j], 65536.0f, 1.0f), counted);
    }
    dots[f] = row::part_of_dot(y, levels, n);
    const int all = __reduce_add_sync(row::kAll, static_cast<int>(counted));
    packed = lane / 2 == f ? all : packed;
  }
  const float dot = row::fold_each(dots);
  const int sum = packed & 0xffff, squares = packed >> 16;
  const float spread = static_cast<float>(n * squares - sum * sum);
  const float score = dot > 0.0f && spread > 0.0f ? (dot * dot) / spread : 0.0f;
  const int best = row::first_largest(score);
  if (!(__shfl_sync(row::kAll, score, best) > 0.0f)) return encode_minmax<T>(x, range, codes);
  const float best_dot = __shfl_sync(row::kAll, dot, best), best_spread = __shfl_sync(row::kAll, spread, best);
  const int best_sum = __shfl_sync(row::kAll, sum, best);
  // Recomputes the winner's codes: cheaper than keeping two sets in registers.
  fraction = __shfl_sync(row::kAll, fraction, best), inverse = __shfl_sync(row::kAll, inverse, best);
  const float low = center - fraction * (0.5f * width);
#pragma unroll
  for (int j = 0; j < P; ++j) codes[j] = static_cast<int>(row::clamp((x[j] - low) * inverse + 0.5f, 3.0f));

  const float ideal = value_side ? (best_dot * count) / best_spread : energy / best_dot;
  const float level = static_cast<float>(best_sum) / count;  // mean of the codes
  const std::uint16_t scale = stored_scale<T>(ideal);
  const float s = T::value(scale);
  if ((mean < 0.0f ? -mean : mean) > kMaxOffset * s) return encode_constant<T>(range, codes);
  return {scale, T::bits(level - mean / s)};
}

}  // namespace oscar::kernels::uniform
