// The grid of scale bytes of the blocks layout: 2^(k/32) and the rounding boundaries 2^((k + 1/2)/32), k = 0..31, as
// the nearest floats. Comparing with the boundaries gives a scale byte without a logarithm. These are compile-time
// constants, the same for the CPU codec and the CUDA kernels.
#pragma once

namespace oscar {

struct ScaleGrid {
  float value[32], boundary[32];
};

// Computing 2^(n/64) by repeated square roots would add rounding errors; a Taylor series of exp in double stays far
// below half a float ulp.
constexpr double exp2_of(double exponent) {
  const double y = exponent * 0.693147180559945309417232121458;
  double term = 1.0, sum = 1.0;
  for (int i = 1; i < 30; ++i) {
    term *= y / i;
    sum += term;
  }
  return sum;
}

constexpr ScaleGrid make_scale_grid() {
  ScaleGrid grid{};
  for (int k = 0; k < 32; ++k) {
    grid.value[k] = static_cast<float>(exp2_of(k / 32.0));
    grid.boundary[k] = static_cast<float>(exp2_of((k + 0.5) / 32.0));
  }
  return grid;
}

}  // namespace oscar
