#include "kernels/check/device_code.h"

#include <tuple>

#include "oscar_kv/csrc/arguments.h"

namespace oscar_kv {

// Whether the kernels run on the device of `like`: the CUDA error or 0, the driver's version and the version for PTX.
std::tuple<std::int64_t, std::int64_t, std::int64_t> device_code(const Tensor& like) {
  const Arguments arguments("device_code", like);  // makes the tensor's device current
  const oscar::kernels::DeviceCode found = oscar::kernels::device_code();
  return {found.error, found.driver, found.driver_for_ptx};
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) { m.impl("device_code", TORCH_BOX(&device_code)); }

}  // namespace oscar_kv
