// The balanced transform of one head: a basis in which the rows and the metric of their errors have the same diagonal
// moment, so that classical bit allocation applies.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace oscar {

struct Balanced {
  at::Tensor basis;        // B [d, d] FP64: x' = x B
  at::Tensor inverse;      // B^-1
  at::Tensor lambda;       // [d] descending: B^T C B = B^-1 M B^-T = diag(lambda)
  double condition = 1.0;  // of B with each model channel scaled to unit deviation
};

// C, M [d, d] FP64, symmetric positive definite (damped() of side_moments.h). With L = chol(C), and U, lambda^2 the
// eigenvectors and eigenvalues of L^T M L: B = L^-T U lambda^(1/2). B B^T is the geometric mean G = C^-1 # M. Columns:
// strongest first, largest-magnitude component positive. NumericalError naming `name` if a decomposition fails.
Balanced balance(const at::Tensor& covariance, const at::Tensor& metric, const std::string& name);

}  // namespace oscar
