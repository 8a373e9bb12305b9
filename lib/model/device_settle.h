// GPU kernels run asynchronously. At the end of a timeline phase, the CPU must wait for the kernels that the phase
// started.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "base/timeline.h"

namespace oscar {

// Makes each later switch of phases wait for the device's current stream. Does nothing on the CPU or for a null
// timeline.
void settle_on_device(Timeline* timeline, at::Device device);

// Waits until x is computed.
void wait_for(const at::Tensor& x);

}  // namespace oscar
