// Where CUDA is off.
#include "methods/device_codes.h"
#include "base/errors.h"

namespace oscar {

void code_rows_on_device(const SideCode&, bool, const at::Tensor&) {
  throw EnvironmentError("this build has no CUDA kernels; pass --device cpu");
}

}  // namespace oscar
