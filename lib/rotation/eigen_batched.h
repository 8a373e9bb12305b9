// All symmetric eigenproblems of a fit in one GPU batch: cusolverDnXsyevBatched in FP64 (cuda/eigen_batched.cpp),
// or a stand-in that refuses where the build has no CUDA (no_cuda/eigen_batched.cpp). eigen.h is what callers use; the
// CPU solver there is the specification.
#pragma once

#include <ATen/core/Tensor.h>

namespace oscar {

struct BatchedEigen {
  at::Tensor values;   // [N, d] FP64 on the device, ascending
  at::Tensor vectors;  // [N, d, d] FP64 on the device, eigenvectors in columns, signs as they come
  at::Tensor info;     // [N] int32 on the CPU, 0: converged
};

// matrices: [N, d, d] FP64 on a CUDA device, symmetric, contiguous; not changed. EnvironmentError when the GPU solver
// cannot be started or this build has none.
BatchedEigen batched_eigen(const at::Tensor& matrices);

}  // namespace oscar
