// Symmetric eigenproblems of many small FP64 matrices, checked: LAPACK through LibTorch on the CPU, one cuSOLVER batch
// (eigen_batched.h) on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace oscar {

struct SymmetricEigen {
  at::Tensor values;   // [N, d] FP64, ascending
  at::Tensor vectors;  // [N, d, d] FP64, eigenvectors in columns, largest-magnitude component positive
};

// A = V diag(values) V^T for each of matrices [N, d, d] FP64; names[n] is used in messages ("layers.3.q_gram head 2").
// The matrix is symmetrized; a zero matrix gives V = I. Each matrix is scaled to unit size first, so moments of any
// magnitude work. The result depends on the input alone, not on the number of threads.
// On a GPU every result is checked in the same way, and a matrix that fails is solved again on the CPU.
// NumericalError naming the matrix: NaN or infinity in it, asymmetric beyond rounding, negative eigenvalues beyond
// rounding, no convergence, residual |A V - V W| / |A| > 1e-9 or |V^T V - I| > 1e-9.
SymmetricEigen symmetric_eigen(const at::Tensor& matrices, const std::vector<std::string>& names,
                               at::Device device = at::kCPU);

}  // namespace oscar
