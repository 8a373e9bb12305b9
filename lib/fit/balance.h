// The balanced transform of one head: a basis in which the rows and the metric of their errors have the same diagonal
// moment, so that classical bit allocation applies.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace oscar {

struct Balanced {
  at::Tensor basis;        // B [d, d] FP64: x' = x B
  at::Tensor inverse;      // B^-1
  at::Tensor lambda;       // [d] descending: B^T C B = B^-1 M B^-T = diag(lambda) for exponent 1
  double condition = 1.0;  // of B with each model channel scaled to unit deviation
};

// C, M [d, d] FP64, symmetric positive definite (damped() of side_moments.h). With L = chol(C), and U, lambda^2 the
// eigenvectors and eigenvalues of L^T M L: B = L^-T U lambda^(1/2). B B^T is the geometric mean G = C^-1 # M. exponent
// p in [0, 1]: T0 = G^(p/2), then the eigenvectors of T0^-1 M T0^-1. p = 1 gives the formula above, p = 0 the
// orthogonal eigenvectors of M; lambda is then the root of the products of both diagonals. Columns: strongest first,
// largest-magnitude component positive. NumericalError naming `name` if a decomposition fails.
Balanced balance(const at::Tensor& covariance, const at::Tensor& metric, double exponent, const std::string& name);

}  // namespace oscar
