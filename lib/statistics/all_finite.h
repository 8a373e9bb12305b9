// Checks that all elements of a tensor of any length are finite.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace oscar {

// A plain loop, which compilers vectorize. A comparison with NaN is false.
template <typename Real>
bool all_finite(const Real* x, std::int64_t count) {
  std::int64_t finite = 0;
  for (std::int64_t i = 0; i < count; ++i) finite += std::abs(x[i]) <= std::numeric_limits<Real>::max() ? 1 : 0;
  return finite == count;
}

// Reads the tensor once and allocates no memory of its size.
inline bool all_finite(const at::Tensor& x) {
  if (x.is_cpu() && x.is_contiguous() && x.scalar_type() == at::kDouble) {
    return all_finite(x.const_data_ptr<double>(), x.numel());
  }
  if (x.is_cpu() && x.is_contiguous() && x.scalar_type() == at::kFloat) {
    return all_finite(x.const_data_ptr<float>(), x.numel());
  }
  if (x.dim() == 0) return x.isfinite().item<bool>();
  constexpr std::int64_t kSlice = 1024;  // along the first dimension
  for (std::int64_t first = 0; first < x.size(0); first += kSlice) {
    if (!x.narrow(0, first, std::min(kSlice, x.size(0) - first)).isfinite().all().item<bool>()) return false;
  }
  return true;
}

}  // namespace oscar
