// All symmetric eigenproblems of a fit in one GPU batch: cusolverDnXsyevBatched in FP64 (cuda/eigen_batched.cpp). A
// build without CUDA has a replacement that throws (no_cuda/eigen_batched.cpp). Callers use eigen.h, whose CPU solver
// is the specification.
#pragma once

#include <ATen/core/Tensor.h>

namespace oscar {

struct BatchedEigen {
  at::Tensor values;   // [N, d] FP64 on the device, ascending
  at::Tensor vectors;  // [N, d, d] FP64 on the device, eigenvectors in columns, signs as the solver returns them
  at::Tensor info;     // [N] int32 on the CPU, 0: converged
};

// matrices: [N, d, d] FP64 on a CUDA device, symmetric, contiguous; unchanged. EnvironmentError if the GPU solver
// cannot be started or the build has none.
BatchedEigen batched_eigen(const at::Tensor& matrices);

}  // namespace oscar
