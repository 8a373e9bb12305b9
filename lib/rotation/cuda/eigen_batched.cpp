#include <ATen/ATen.h>
#include <cusolverDn.h>

#include <string>

#include "base/errors.h"
#include "rotation/eigen_batched.h"

namespace oscar {
namespace {

void check(cusolverStatus_t status, const char* what) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  throw EnvironmentError(std::string("the GPU eigensolver failed in ") + what + " (cuSOLVER status " +
                         std::to_string(static_cast<int>(status)) + "); pass --device cpu");
}

// Creating a handle takes longer than a batch, so a thread keeps its own.
struct Solver {
  cusolverDnHandle_t handle = nullptr;
  cusolverDnParams_t params = nullptr;
  Solver() {
    check(cusolverDnCreate(&handle), "cusolverDnCreate");
    check(cusolverDnCreateParams(&params), "cusolverDnCreateParams");
  }
  ~Solver() {
    if (params != nullptr) cusolverDnDestroyParams(params);
    if (handle != nullptr) cusolverDnDestroy(handle);
  }
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;
};

}  // namespace

// Works on the default stream, which is LibTorch's too.
BatchedEigen batched_eigen(const at::Tensor& matrices) {
  const std::int64_t count = matrices.size(0), d = matrices.size(1);
  thread_local Solver solver;
  const auto options = matrices.options();
  at::Tensor a = matrices.clone(at::MemoryFormat::Contiguous);  // overwritten by the eigenvectors, column by column
  at::Tensor values = at::empty({count, d}, options);
  at::Tensor info = at::empty({count}, options.dtype(at::kInt));
  std::size_t device_bytes = 0, host_bytes = 0;
  check(cusolverDnXsyevBatched_bufferSize(solver.handle, solver.params, CUSOLVER_EIG_MODE_VECTOR,
                                          CUBLAS_FILL_MODE_LOWER, d, CUDA_R_64F, a.data_ptr(), d, CUDA_R_64F,
                                          values.data_ptr(), CUDA_R_64F, &device_bytes, &host_bytes, count),
        "cusolverDnXsyevBatched_bufferSize");
  const at::Tensor device_buffer = at::empty({static_cast<std::int64_t>(device_bytes)}, options.dtype(at::kByte));
  const at::Tensor host_buffer = at::empty({static_cast<std::int64_t>(host_bytes)}, at::kByte);
  check(cusolverDnXsyevBatched(solver.handle, solver.params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, d,
                               CUDA_R_64F, a.data_ptr(), d, CUDA_R_64F, values.data_ptr(), CUDA_R_64F,
                               device_buffer.data_ptr(), device_bytes, host_buffer.data_ptr(), host_bytes,
                               info.data_ptr<int>(), count),
        "cusolverDnXsyevBatched");
  return {values, a.transpose(-1, -2), info.cpu()};
}

}  // namespace oscar
