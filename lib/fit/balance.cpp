#include "fit/balance.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "fit/eigen.h"

namespace oscar {
namespace {

at::Tensor symmetric(const at::Tensor& m) { return (m + m.t()) * 0.5; }

struct Descending {
  at::Tensor values, vectors;
};

Descending eigen_descending(const at::Tensor& m, const std::string& name) {
  const SymmetricEigen eigen = symmetric_eigen(symmetric(m).unsqueeze(0), {name});
  return {eigen.values[0].flip(0).contiguous(), eigen.vectors[0].flip(1).contiguous()};
}

// C and M with each channel scaled to unit deviation, so that solvers handle channels of very different size.
struct Scaled {
  at::Tensor deviation, covariance, metric;
};

Scaled scale_channels(const at::Tensor& c, const at::Tensor& m) {
  const at::Tensor s = c.diagonal().sqrt();
  return {s, c / at::outer(s, s), m * at::outer(s, s)};
}

at::Tensor cholesky(const at::Tensor& c, const std::string& name) {
  const auto [factor, info] = at::linalg_cholesky_ex(c);
  if (info.item<int>() != 0) throw NumericalError(name + ": the damped covariance is not positive definite");
  return factor;
}

void fix_column_signs(Balanced& b) {
  const at::Tensor largest = b.basis.abs().argmax(0, true);
  const at::Tensor sign = at::where(b.basis.gather(0, largest) < 0, -1.0, 1.0).to(at::kDouble);  // [1, d]
  b.basis = b.basis * sign;
  b.inverse = b.inverse * sign.t();
}

}  // namespace

Balanced balance(const at::Tensor& covariance, const at::Tensor& metric, const std::string& name) {
  const Scaled s = scale_channels(covariance, metric);
  const at::Tensor factor = cholesky(s.covariance, name);  // C = L L^T
  const Descending e = eigen_descending(at::matmul(at::matmul(factor.t(), s.metric), factor), name);
  // Directions that the metric hardly weighs keep a finite size in the basis.
  const at::Tensor lambda = e.values.clamp_min(1e-24 * e.values[0].item<double>()).sqrt();
  Balanced out;
  out.lambda = lambda;
  // B = L^-T U lambda^(1/2), B^-1 = lambda^(-1/2) U^T L^T, in scaled channels.
  const at::Tensor root = lambda.sqrt();
  const at::Tensor basis = at::linalg_solve_triangular(factor.t(), e.vectors * root, /*upper=*/true);
  const at::Tensor inverse = at::matmul((e.vectors / root).t(), factor.t());
  out.condition = (at::linalg_matrix_norm(basis, 2) * at::linalg_matrix_norm(inverse, 2)).item<double>();
  out.basis = basis / s.deviation.unsqueeze(1);
  out.inverse = inverse * s.deviation;
  fix_column_signs(out);
  return out;
}

}  // namespace oscar
