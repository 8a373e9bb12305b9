// Where CUDA is off.
#include "base/errors.h"
#include "runtime/device_rows.h"

namespace oscar {

CachedRows cached_rows_on_device(const KvMethod&, std::int64_t, Side, const at::Tensor&) {
  throw EnvironmentError("this build has no CUDA kernels; pass --device cpu");
}

}  // namespace oscar
