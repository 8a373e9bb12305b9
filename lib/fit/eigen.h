// Symmetric eigenproblems of many small FP64 matrices, with checks: LAPACK through LibTorch on the CPU, one cuSOLVER
// batch (eigen_batched.h) on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace oscar {

struct SymmetricEigen {
  at::Tensor values;   // [N, d] FP64, ascending
  at::Tensor vectors;  // [N, d, d] FP64, eigenvectors in columns, largest-magnitude component positive
};

// A = V diag(values) V^T for each of matrices [N, d, d] FP64; messages use names[n] ("layers.3.q_gram head 2"). The
// matrix is symmetrized; a zero matrix gives V = I. Each matrix is first scaled to unit size, so moments of any
// magnitude work. The result depends only on the input, not on the number of threads. GPU results get the same checks,
// and the CPU solves a matrix again if it fails one. NumericalError naming the matrix for NaN or infinity, asymmetry
// beyond rounding, or negative eigenvalues beyond rounding. Also for no convergence, a residual |A V - V W| / |A| >
// 1e-9, or |V^T V - I| > 1e-9.
SymmetricEigen symmetric_eigen(const at::Tensor& matrices, const std::vector<std::string>& names,
                               at::Device device = at::kCPU);

}  // namespace oscar
