// Used if CUDA is off.
#include "methods/device_codes.h"
#include "base/errors.h"

namespace oscar {

namespace {

[[noreturn]] void refuse() { throw EnvironmentError("this build has no CUDA kernels; pass --device cpu"); }

}  // namespace

void code_rows_on_device(const SideCode&, const at::Tensor&) { refuse(); }
void hadamard_on_device(const at::Tensor&, std::int64_t) { refuse(); }
at::Tensor token_norms_on_device(const at::Tensor&) { refuse(); }

}  // namespace oscar
