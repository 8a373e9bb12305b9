// Kernels run behind the CPU's back: where a phase of a timeline ends, it has to wait for those that the phase started.
#pragma once

#include <c10/core/Device.h>

#include "base/timeline.h"

namespace oscar {

// From here on each switch of phases waits for the device's current stream. Nothing on the CPU, or for a null timeline.
void settle_on_device(Timeline* timeline, at::Device device);

}  // namespace oscar
