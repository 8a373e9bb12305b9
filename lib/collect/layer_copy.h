// Copies the sums of a finished layer from a device to the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include "statistics/statistics.h"

namespace oscar {

// Keeps page-locked memory of the size of a layer between calls. The driver copies pageable memory in pieces through
// its own page-locked buffer, and the device waits while each new page is first touched.
class LayerCopier {
 public:
  void to_cpu(LayerMoments& layer);  // gives each tensor its own CPU memory; waits for the current stream

 private:
  at::Tensor locked_;  // bytes
};

}  // namespace oscar
