// Codes of one group of values that share a scale, for a group in the lanes of a warp or in a single thread. CPU
// references: lib/methods/group_codes.cpp and lloyd_max.cpp. Compiled without fused multiply-add: the same bits.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/tiles/code_tiles.h"

namespace oscar::kernels {

// Consecutive values; each lane holds elements lane + 32 i.
struct WarpGroup {
  float* x;
  int n, lane;
  __device__ __forceinline__ int begin() const { return lane; }
  __device__ __forceinline__ int step() const { return 32; }
  __device__ __forceinline__ float& at(int i) const { return x[i]; }
  template <class T, class F>
  __device__ __forceinline__ T reduce(T value, F&& f) const {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = f(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
  }
};

// One value per token, all in one thread.
struct ThreadGroup {
  float* x;
  int n;
  std::int64_t stride;
  __device__ __forceinline__ int begin() const { return 0; }
  __device__ __forceinline__ int step() const { return 1; }
  __device__ __forceinline__ float& at(int i) const { return x[i * stride]; }
  template <class T, class F>
  __device__ __forceinline__ T reduce(T value, F&&) const {
    return value;
  }
};

// Rounds to FP16; beyond its range: the largest finite value.
__device__ __forceinline__ float stored_half(float value) {
  return __half2float(__float2half_rn(fminf(fmaxf(value, -65504.0f), 65504.0f)));
}

template <class G>
__device__ __forceinline__ void range_of(const G& g, float& low, float& high) {
  low = INFINITY, high = -INFINITY;
  for (int i = g.begin(); i < g.n; i += g.step()) low = fminf(low, g.at(i)), high = fmaxf(high, g.at(i));
  low = g.reduce(low, [](float a, float b) { return fminf(a, b); });
  high = g.reduce(high, [](float a, float b) { return fmaxf(a, b); });
}

// The parameters of a group of uniform codes: xhat = code scale + offset. zero: the code of 0 if it is an integer.
struct GroupScale {
  float scale, offset, zero;
  bool integer_zero;
};

__device__ __forceinline__ GroupScale uniform_scale(float low, float high, int bits) {
  const float top = static_cast<float>((1 << bits) - 1);
  return {stored_half((high - low) / top), stored_half(low), 0.0f, false};
}

__device__ __forceinline__ GroupScale integer_zero_scale(float low, float high, int bits, float clip) {
  low *= clip, high *= clip;
  if (low == 0.0f && high == 0.0f) low = -1.0f, high = 1.0f;
  const float top = static_cast<float>((1 << bits) - 1), scale = stored_half((high - low) / top);
  const bool spread = scale > 0.0f;
  const float zero = spread ? rintf(-low / scale) : 0.0f;
  return {spread ? scale : 0.0f, stored_half(spread ? -zero * scale : low), zero, true};
}

__device__ __forceinline__ float code_of(const GroupScale& s, float x, int bits) {
  if (!(s.scale > 0.0f)) return 0.0f;
  const float code = s.integer_zero ? rintf(x / s.scale) + s.zero : rintf((x - s.offset) / s.scale);
  return fminf(fmaxf(code, 0.0f), static_cast<float>((1 << bits) - 1));
}

template <class G>
__device__ __forceinline__ void code_and_decode(const G& g, const GroupScale& s, int bits) {
  for (int i = g.begin(); i < g.n; i += g.step()) g.at(i) = code_of(s, g.at(i), bits) * s.scale + s.offset;
}

template <class G>
__device__ __forceinline__ void code_uniform(const G& g, int bits) {
  float low, high;
  range_of(g, low, high);
  code_and_decode(g, uniform_scale(low, high, bits), bits);
}

template <class G>
__device__ __forceinline__ void code_integer_zero(const G& g, int bits, float clip) {
  float low, high;
  range_of(g, low, high);
  code_and_decode(g, integer_zero_scale(low, high, bits, clip), bits);
}

template <class G>
__device__ __forceinline__ float largest_magnitude(const G& g) {
  float largest = 0.0f;
  for (int i = g.begin(); i < g.n; i += g.step()) largest = fmaxf(largest, fabsf(g.at(i)));
  return g.reduce(largest, [](float a, float b) { return fmaxf(a, b); });
}

template <class G>
__device__ __forceinline__ void code_symmetric4(const G& g) {
  const float largest = largest_magnitude(g);
  int first = g.n - 1;  // index of the first value of largest magnitude
  for (int i = g.begin(); i < g.n; i += g.step()) {
    if (fabsf(g.at(i)) == largest) first = min(first, i);
  }
  first = g.reduce(first, [](int a, int b) { return min(a, b); });
  const float extreme = largest > 0.0f ? g.at(first) : 0.0f;
  const float scale = extreme / -8.0f, inverse = scale != 0.0f ? 1.0f / scale : 0.0f, stored = stored_half(scale);
  __syncwarp();  // every lane has read the extreme value
  for (int i = g.begin(); i < g.n; i += g.step()) {
    g.at(i) = (fminf(truncf(g.at(i) * inverse + 8.5f), 15.0f) - 8.0f) * stored;
  }
}

template <class G>
__device__ __forceinline__ void code_float8(const G& g) {
  for (int i = g.begin(); i < g.n; i += g.step()) {
    const float value = g.at(i), magnitude = fminf(fabsf(value), 448.0f);
    int exponent = 0;
    frexpf(magnitude, &exponent);
    const float step = ldexpf(1.0f, max(exponent - 1, -6) - 3);
    g.at(i) = copysignf(fminf(rintf(magnitude / step) * step, 448.0f), value);
  }
}

template <class G>
__device__ __forceinline__ void code_lloyd_max(const G& g, const CodeTilesParams& p) {
  const auto add = [](double a, double b) { return a + b; };
  double squares = 0.0;
  for (int i = g.begin(); i < g.n; i += g.step()) squares += static_cast<double>(g.at(i)) * g.at(i);
  const double norm = sqrt(g.reduce(squares, add));
  if (norm == 0.0) return;
  const float stored = stored_half(static_cast<float>(norm));
  const double up = sqrt(static_cast<double>(g.n)) / norm;
  const int last = (1 << p.bits) - 1;
  for (int i = g.begin(); i < g.n; i += g.step()) {
    const double y = g.at(i) * up;
    int above = 0, end = last;  // the first centroid that is not below y, or the last one
    while (above < end) {
      const int middle = (above + end) / 2;
      if (p.centroids[middle] < y) {
        above = middle + 1;
      } else {
        end = middle;
      }
    }
    if (above > 0 && y - p.centroids[above - 1] <= p.centroids[above] - y) --above;
    g.at(i) = static_cast<float>(p.centroids[above]);
  }
  const double down = 1.0 / sqrt(static_cast<double>(g.n));
  for (int i = g.begin(); i < g.n; i += g.step()) g.at(i) = static_cast<float>(g.at(i) * down * stored);
}

template <class G>
__device__ __forceinline__ void code_group(const G& g, const CodeTilesParams& p) {
  switch (p.code) {
    case TileCode::kUniform:
      return code_uniform(g, p.bits);
    case TileCode::kIntegerZero:
      return code_integer_zero(g, p.bits, p.clip);
    case TileCode::kSymmetric4:
      return code_symmetric4(g);
    case TileCode::kFloat8:
      return code_float8(g);
    case TileCode::kLloydMax:
      return code_lloyd_max(g, p);
  }
}

}  // namespace oscar::kernels
