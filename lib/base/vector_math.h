// Sixteen floats at once in GNU vectors, for loops that the compiler clones for wider instruction sets. The last bits
// of a sum depend on the clone, as with a BLAS, because some clones fuse multiply and add.
#pragma once

#include <cstdint>
#include <cstring>

// Clones need GNU indirect functions. Other compilers and sanitizer builds use the baseline.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define OSCAR_FLOAT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OSCAR_FLOAT_CLONES
#endif

namespace oscar::vector_math {

#define OSCAR_VECTOR_INLINE inline __attribute__((always_inline))

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::int32_t Ints __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

// Passed by reference, because the clones pass vectors by value differently.
OSCAR_VECTOR_INLINE void load(Floats& x, const float* from) { std::memcpy(&x, from, sizeof(x)); }
OSCAR_VECTOR_INLINE void store(float* to, const Floats& x) { std::memcpy(to, &x, sizeof(x)); }

OSCAR_VECTOR_INLINE double sum(const Floats& x) {
  double total = 0.0;
  for (int i = 0; i < kLanes; ++i) total += static_cast<double>(x[i]);
  return total;
}

// With x = n ln 2 + r and |r| <= ln 2 / 2, computes 2^n and e^r - 1. The series has a relative error below 1e-7. x is
// clamped to [-87, 88]; NaN stays.
OSCAR_VECTOR_INLINE void reduced_expm1(Floats& x, Floats& two_to_n) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds a number to an integer
  x = x < -87.0f ? Floats{} - 87.0f : x;
  x = x > 88.0f ? Floats{} + 88.0f : x;
  const Floats shifted = x * 1.44269504f + kRound, n = shifted - kRound;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first exact in 9 bits
  Floats series = r * (1.0f / 5040.0f) + (1.0f / 720.0f);
  series = series * r + (1.0f / 120.0f);
  series = series * r + (1.0f / 24.0f);
  series = series * r + (1.0f / 6.0f);
  series = series * r + 0.5f;
  x = series * (r * r) + r;
  Ints bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 23) + (127 << 23);  // the low bits of `shifted` hold n
  std::memcpy(&two_to_n, &bits, sizeof(bits));
}

OSCAR_VECTOR_INLINE void exp_in_place(Floats& x) {
  Floats scale;
  reduced_expm1(x, scale);
  x = x * scale + scale;
}

OSCAR_VECTOR_INLINE void expm1_in_place(Floats& x) {
  Floats scale;
  reduced_expm1(x, scale);
  x = x * scale + (scale - 1.0f);
}

}  // namespace oscar::vector_math
