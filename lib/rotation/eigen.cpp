#include "rotation/eigen.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>
#include <cstdio>

#include "base/errors.h"

namespace oscar {
namespace {

constexpr double kResidualLimit = 1e-9;   // of a backward-stable solver at d = 256: about 1e-14
constexpr double kAsymmetryLimit = 1e-6;  // relative to the largest element
constexpr double kNegativeLimit = 1e-6;   // relative to the largest eigenvalue
constexpr double kTieTolerance = 1e-9;    // components this close in magnitude count as equal in the sign rule

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// Largest-magnitude component positive; of several equally large ones the first decides.
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

void solve_one(const at::Tensor& input, const std::string& name, at::Tensor values, at::Tensor vectors) {
  const double size = input.abs().max().item<double>();
  if (!std::isfinite(size)) throw NumericalError(name + ": holds NaN or infinity; collect the statistics again");
  if (size == 0.0) {
    values.zero_();
    vectors.copy_(at::eye(input.size(0), at::kDouble));
    return;
  }
  const at::Tensor unit = input / size;
  const double asymmetry = (unit - unit.t()).abs().max().item<double>();
  if (asymmetry > kAsymmetryLimit) {
    throw NumericalError(name + ": is not symmetric (relative difference " + number(asymmetry) +
                         "), expected a second moment");
  }
  const at::Tensor symmetric = (unit + unit.t()) * 0.5;
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
    throw NumericalError(name + ": eigenvectors failed their check (residual " + number(residual) +
                         ", orthogonality error " + number(orthogonality) + ")");
  }
  const double smallest = w[0].item<double>();
  if (smallest < -kNegativeLimit * w[-1].abs().item<double>()) {
    throw NumericalError(name + ": has a negative eigenvalue (" + number(smallest * size) +
                         "), expected a second moment");
  }
  fix_signs(v);
  vectors.copy_(v);
  values.copy_(w.clamp_min(0.0) * size);  // what is left below zero is rounding
}

}  // namespace

SymmetricEigen symmetric_eigen(const at::Tensor& matrices, const std::vector<std::string>& names) {
  const std::int64_t count = matrices.size(0);
  const std::int64_t d = matrices.size(1);
  SymmetricEigen result{at::empty({count, d}, at::kDouble), at::empty({count, d, d}, at::kDouble)};
  // One matrix to a thread: LAPACK then runs single-threaded on each, which is faster at this size and gives the same
  // bits whatever the number of threads.
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      solve_one(matrices[n], names[static_cast<std::size_t>(n)], result.values[n], result.vectors[n]);
    }
  });
  return result;
}

}  // namespace oscar
