// Finiteness of tensors of any length.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>

namespace oscar {

// In slices along the first dimension, so that long rows in a file need no memory of their size.
inline bool all_finite(const at::Tensor& x) {
  constexpr std::int64_t kSlice = 1024;
  if (x.dim() == 0) return x.isfinite().item<bool>();
  for (std::int64_t first = 0; first < x.size(0); first += kSlice) {
    if (!x.narrow(0, first, std::min(kSlice, x.size(0) - first)).isfinite().all().item<bool>()) return false;
  }
  return true;
}

}  // namespace oscar
