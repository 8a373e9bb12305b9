// Used if CUDA is off.
#include "attention/device_decoded_rows.h"
#include "base/errors.h"

namespace oscar {

CachedRows decoded_rows_on_device(const KvMethod&, std::int64_t, Side, const at::Tensor&) {
  throw EnvironmentError("this build has no CUDA kernels; pass --device cpu");
}

}  // namespace oscar
