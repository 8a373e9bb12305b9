#include "model/device_settle.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace oscar {

void settle_on_device(Timeline* timeline, at::Device device) {
  if (timeline == nullptr || !device.is_cuda()) return;
  timeline->set_settle([device] {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
  });
}

void wait_for(const at::Tensor& x) { x.flatten().narrow(0, 0, 1).item(); }

}  // namespace oscar
