// A mean of keys that was taken before RoPE.
#pragma once

#include "kernels/common/page_layout.h"

namespace oscar {

// Channel i of a mean [d], with RoPE applied for the position of phases [d]: cosines, then sines, of half-split pairs.
// Null phases: the mean is the same everywhere.
OSCAR_HOST_DEVICE constexpr float mean_channel(const float* mean, const float* phases, int d, int i) {
  if (phases == nullptr) return mean[i];
  const int half = d / 2;
  const float cosine = mean[i] * phases[i % half],
              sine = mean[i < half ? i + half : i - half] * phases[half + i % half];
  return i < half ? cosine - sine : cosine + sine;
}

}  // namespace oscar
