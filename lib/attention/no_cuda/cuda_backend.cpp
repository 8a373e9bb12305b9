// Used if CUDA is off.
#include "attention/paged_backend.h"
#include "base/errors.h"

namespace oscar {

std::string fast_kernel_fault(const KvMethod&, const ModelConfig&) { return ""; }

std::unique_ptr<PagedBackend> make_cuda_backend(const KvMethod&, const ModelConfig&, at::Device) {
  throw EnvironmentError("this build has no CUDA kernels; pass --device cpu");
}

}  // namespace oscar
