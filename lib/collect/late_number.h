// A number that a device computes and the CPU reads later. Its copy to the CPU begins at once, and value() waits for
// it, so the device does not idle meanwhile.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace oscar {

class LateNumber {
 public:
  explicit LateNumber(const at::Tensor& number);  // one FP64 element, on any device
  double value() const;

 private:
  at::Tensor copy_;
  std::optional<c10::Event> copied_;
};

}  // namespace oscar
