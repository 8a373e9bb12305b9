#include "fit/eigen.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/formatted.h"
#include "base/parallel.h"
#include "fit/eigen_batched.h"

namespace oscar {
namespace {

constexpr double kResidualLimit = 1e-9;   // a backward-stable solver has about 1e-14 at d = 256
constexpr double kAsymmetryLimit = 1e-6;  // relative to the largest element
constexpr double kNegativeLimit = 1e-6;   // relative to the largest eigenvalue
constexpr double kTieTolerance = 1e-9;    // components this close in magnitude count as equal in the sign rule

// Makes the largest-magnitude component positive; of several equally large ones the first decides.
void fix_signs(at::Tensor& vectors) {
  const std::int64_t d = vectors.size(0);
  double* v = vectors.data_ptr<double>();
  for (std::int64_t column = 0; column < d; ++column) {
    double largest = 0.0;
    for (std::int64_t i = 0; i < d; ++i) largest = std::max(largest, std::abs(v[i * d + column]));
    std::int64_t decisive = 0;
    while (decisive < d - 1 && std::abs(v[decisive * d + column]) < largest * (1.0 - kTieTolerance)) ++decisive;
    if (v[decisive * d + column] >= 0.0) continue;
    for (std::int64_t i = 0; i < d; ++i) v[i * d + column] = -v[i * d + column];
  }
}

// The matrix at unit size, exactly symmetric; undefined if it is all zero. *size: its largest magnitude.
at::Tensor unit_symmetric(const at::Tensor& input, const std::string& name, double* size) {
  *size = input.abs().max().item<double>();
  if (!std::isfinite(*size)) throw NumericalError(name + ": holds NaN or infinity; collect the statistics again");
  if (*size == 0.0) return {};
  const at::Tensor unit = input / *size;
  const double asymmetry = (unit - unit.t()).abs().max().item<double>();
  if (asymmetry > kAsymmetryLimit) {
    throw NumericalError(name + ": is not symmetric (relative difference " + formatted("%.3g", asymmetry) +
                         "), expected a second moment");
  }
  return (unit + unit.t()) * 0.5;
}

// Final steps of every solution: no negative eigenvalue beyond rounding, canonical signs, the size restored.
void store(at::Tensor w, at::Tensor v, double size, const std::string& name, at::Tensor values, at::Tensor vectors) {
  const double smallest = w[0].item<double>();
  if (smallest < -kNegativeLimit * w[-1].abs().item<double>()) {
    throw NumericalError(name + ": has a negative eigenvalue (" + formatted("%.3g", smallest * size) +
                         "), expected a second moment");
  }
  fix_signs(v);
  vectors.copy_(v);
  values.copy_(w.clamp_min(0.0) * size);  // remaining negative values are rounding errors
}

void store_zero(at::Tensor values, at::Tensor vectors) {
  values.zero_();
  vectors.copy_(at::eye(vectors.size(0), at::kDouble));
}

void solve_one(const at::Tensor& input, const std::string& name, at::Tensor values, at::Tensor vectors) {
  double size = 0.0;
  const at::Tensor symmetric = unit_symmetric(input, name, &size);
  if (!symmetric.defined()) return store_zero(values, vectors);
  at::Tensor w, v;
  try {
    std::tie(w, v) = at::linalg_eigh(symmetric);
  } catch (const c10::Error&) {
    throw NumericalError(name + ": the eigensolver did not converge");
  }
  v = v.contiguous();
  const double residual =
      (at::matmul(symmetric, v) - v * w.unsqueeze(0)).norm().item<double>() / symmetric.norm().item<double>();
  const double orthogonality = (at::matmul(v.t(), v) - at::eye(v.size(0), at::kDouble)).abs().max().item<double>();
  if (!(residual <= kResidualLimit) || !(orthogonality <= kResidualLimit)) {
    throw NumericalError(name + ": eigenvectors failed their check (residual " + formatted("%.3g", residual) +
                         ", orthogonality error " + formatted("%.3g", orthogonality) + ")");
  }
  store(w, v, size, name, values, vectors);
}

void solve_on_gpu(const at::Tensor& matrices, const std::vector<std::string>& names, at::Device device,
                  SymmetricEigen& result) {
  const std::int64_t count = matrices.size(0), d = matrices.size(1);
  std::vector<double> sizes(static_cast<std::size_t>(count), 0.0);
  at::Tensor units = at::eye(d, at::kDouble).repeat({count, 1, 1});  // stays the identity if the matrix is zero
  parallel_tasks(count, [&](std::int64_t n) {
    const auto i = static_cast<std::size_t>(n);
    const at::Tensor unit = unit_symmetric(matrices[n], names[i], &sizes[i]);
    if (unit.defined()) units[n].copy_(unit);
  });
  units = units.to(device);
  const BatchedEigen solved = batched_eigen(units);
  const at::Tensor& v = solved.vectors;
  const at::Tensor residual = (at::bmm(units, v) - v * solved.values.unsqueeze(1)).norm(2, at::IntArrayRef({1, 2})) /
                              units.norm(2, at::IntArrayRef({1, 2}));
  const at::Tensor orthogonality = (at::bmm(v.transpose(1, 2), v) - at::eye(d, units.options())).abs().amax({1, 2});
  // A NaN compares as false, so NaN is never good.
  const at::Tensor good = residual.le(kResidualLimit).logical_and(orthogonality.le(kResidualLimit)).cpu();
  const at::Tensor values = solved.values.cpu(), vectors = v.cpu().contiguous();
  parallel_tasks(count, [&](std::int64_t n) {
    const auto i = static_cast<std::size_t>(n);
    if (sizes[i] == 0.0) return store_zero(result.values[n], result.vectors[n]);
    if (solved.info[n].item<int>() != 0 || !good[n].item<bool>()) {
      return solve_one(matrices[n], names[i], result.values[n], result.vectors[n]);
    }
    store(values[n], vectors[n], sizes[i], names[i], result.values[n], result.vectors[n]);
  });
}

}  // namespace

SymmetricEigen symmetric_eigen(const at::Tensor& matrices, const std::vector<std::string>& names, at::Device device) {
  const std::int64_t count = matrices.size(0);
  const std::int64_t d = matrices.size(1);
  SymmetricEigen result{at::empty({count, d}, at::kDouble), at::empty({count, d, d}, at::kDouble)};
  if (device.is_cuda() && count > 0) {
    solve_on_gpu(matrices, names, device, result);
    return result;
  }
  parallel_tasks(count, [&](std::int64_t n) {
    solve_one(matrices[n], names[static_cast<std::size_t>(n)], result.values[n], result.vectors[n]);
  });
  return result;
}

}  // namespace oscar
