#include "kernels/check/device_code.h"

#include "oscar_kv/csrc/operators.h"

namespace oscar_kv {

std::tuple<std::int64_t, std::int64_t, std::int64_t> device_code(const Tensor& like) {
  const Arguments arguments("device_code", like);  // makes the tensor's device current
  const oscar::kernels::DeviceCode found = oscar::kernels::device_code();
  return {found.error, found.driver, found.driver_for_ptx};
}

}  // namespace oscar_kv
