// Used if CUDA is off.
#include "attention/paged_backend.h"
#include "base/errors.h"

namespace oscar {

std::string cuda_decode_unsupported(const KvMethod&, const ModelConfig&) { return "this build has no CUDA kernels"; }

std::string fallback_reason(const KvMethod&, const ModelConfig&) { return ""; }

std::unique_ptr<PagedBackend> make_cuda_backend(const KvMethod& method, const ModelConfig& model, at::Device device) {
  throw EnvironmentError(decode_unsupported(method, model, device));
}

}  // namespace oscar
