// The sums of a finished layer on their way from a device to the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "statistics/statistics.h"

namespace oscar {

// Keeps page-locked memory of the size of a layer between calls: pageable copies take it in pieces through such memory
// of the driver's, and each of their pages is first touched while the device waits.
class LayerCopier {
 public:
  void to_cpu(LayerMoments& layer);  // each tensor becomes one of its own on the CPU; waits for the current stream

 private:
  at::Tensor locked_;  // bytes
};

}  // namespace oscar
