#include <ATen/ATen.h>
#include <cusolverDn.h>
#include <dlfcn.h>

#include <string>

#include "base/errors.h"
#include "fit/eigen_batched.h"

namespace oscar {
namespace {

void check(cusolverStatus_t status, const char* what) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  throw EnvironmentError(std::string("the GPU eigensolver failed in ") + what + " (cuSOLVER status " +
                         std::to_string(static_cast<int>(status)) + "); pass --device cpu");
}

// cuSOLVER is loaded at its first use, since it brings gigabytes that a CPU run does not need.
class CuSolver {
  void* library_ = dlopen(("libcusolver.so." + std::to_string(CUSOLVER_VER_MAJOR)).c_str(), RTLD_NOW | RTLD_LOCAL);

 public:
  static const CuSolver& get() {
    static const CuSolver library;
    return library;
  }
  decltype(&cusolverDnCreate) create = function<decltype(&cusolverDnCreate)>("cusolverDnCreate");
  decltype(&cusolverDnDestroy) destroy = function<decltype(&cusolverDnDestroy)>("cusolverDnDestroy");
  decltype(&cusolverDnCreateParams) create_params =
      function<decltype(&cusolverDnCreateParams)>("cusolverDnCreateParams");
  decltype(&cusolverDnDestroyParams) destroy_params =
      function<decltype(&cusolverDnDestroyParams)>("cusolverDnDestroyParams");
  decltype(&cusolverDnXsyevBatched_bufferSize) buffer_size =
      function<decltype(&cusolverDnXsyevBatched_bufferSize)>("cusolverDnXsyevBatched_bufferSize");
  decltype(&cusolverDnXsyevBatched) solve = function<decltype(&cusolverDnXsyevBatched)>("cusolverDnXsyevBatched");

 private:
  CuSolver() = default;
  template <class Function>
  Function function(const char* name) const {
    void* const symbol = library_ != nullptr ? dlsym(library_, name) : nullptr;
    if (symbol == nullptr) {
      throw EnvironmentError("the GPU eigensolver cannot be loaded (" + std::string(dlerror()) +
                             "); install CUDA 13's cuSOLVER, or pass --device cpu");
    }
    return reinterpret_cast<Function>(symbol);
  }
};

// Creating a handle takes longer than a batch, so each thread keeps one.
struct Solver {
  const CuSolver& library = CuSolver::get();
  cusolverDnHandle_t handle = nullptr;
  cusolverDnParams_t params = nullptr;
  Solver() {
    check(library.create(&handle), "cusolverDnCreate");
    check(library.create_params(&params), "cusolverDnCreateParams");
  }
  ~Solver() {
    if (params != nullptr) library.destroy_params(params);
    if (handle != nullptr) library.destroy(handle);
  }
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;
};

}  // namespace

// Works on the default stream, which LibTorch also uses.
BatchedEigen batched_eigen(const at::Tensor& matrices) {
  const std::int64_t count = matrices.size(0), d = matrices.size(1);
  thread_local Solver solver;
  const auto options = matrices.options();
  at::Tensor a = matrices.clone(at::MemoryFormat::Contiguous);  // overwritten by the eigenvectors, column by column
  at::Tensor values = at::empty({count, d}, options);
  at::Tensor info = at::empty({count}, options.dtype(at::kInt));
  std::size_t device_bytes = 0, host_bytes = 0;
  check(solver.library.buffer_size(solver.handle, solver.params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, d,
                                   CUDA_R_64F, a.data_ptr(), d, CUDA_R_64F, values.data_ptr(), CUDA_R_64F,
                                   &device_bytes, &host_bytes, count),
        "cusolverDnXsyevBatched_bufferSize");
  const at::Tensor device_buffer = at::empty({static_cast<std::int64_t>(device_bytes)}, options.dtype(at::kByte));
  const at::Tensor host_buffer = at::empty({static_cast<std::int64_t>(host_bytes)}, at::kByte);
  check(solver.library.solve(solver.handle, solver.params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, d,
                             CUDA_R_64F, a.data_ptr(), d, CUDA_R_64F, values.data_ptr(), CUDA_R_64F,
                             device_buffer.data_ptr(), device_bytes, host_buffer.data_ptr(), host_bytes,
                             info.data_ptr<int>(), count),
        "cusolverDnXsyevBatched");
  return {values, a.transpose(-1, -2), info.cpu()};
}

}  // namespace oscar
