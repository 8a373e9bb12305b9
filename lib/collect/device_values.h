// Numbers and sums that a device computes, read without making it wait.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <optional>

#include "statistics/statistics.h"

namespace oscar {

// A number that a device computes and the CPU reads later. Its copy to the CPU begins at once, and value() waits for
// it, so the device does not idle meanwhile.
class LateNumber {
 public:
  explicit LateNumber(const at::Tensor& number);  // one FP64 element, on any device
  double value() const;

 private:
  at::Tensor copy_;
  std::optional<c10::Event> copied_;
};

// Copies the sums of a finished layer from a device to the CPU.
// Keeps page-locked memory of the size of a layer between calls. The driver copies pageable memory in pieces through
// its own page-locked buffer, and the device waits while each new page is first touched.
class LayerCopier {
 public:
  void to_cpu(LayerMoments& layer);  // gives each tensor its own CPU memory; waits for the current stream

 private:
  at::Tensor locked_;  // bytes
};

}  // namespace oscar
