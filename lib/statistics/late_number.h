// A number that a device computes, read a while after: its copy to the CPU begins at once and is waited for when the
// number is asked for, so that the device is not without work meanwhile.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace oscar {

class LateNumber {
 public:
  explicit LateNumber(const at::Tensor& number);  // FP64, of one element, on any device
  double value() const;

 private:
  at::Tensor copy_;
  std::optional<c10::Event> copied_;
};

}  // namespace oscar
