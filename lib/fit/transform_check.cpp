#include "fit/metric_fit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace oscar {
namespace {

constexpr double kMostChange = 1e-4;
constexpr double kMostGrowth = 4.0;         // relative to BF16's error
constexpr double kFineAnyway = 0.0078125;   // 2^-7: always acceptable
constexpr std::int64_t kMostQueries = 128;  // more queries would give the same result

at::Tensor wide(const at::Tensor& t) { return t.to(at::kDouble); }
double largest(const at::Tensor& t) { return t.numel() == 0 ? 0.0 : t.abs().max().item<double>(); }

// 0 / 0 is 0: no size and no change.
double over(double error, double size) {
  if (error == 0.0) return 0.0;
  return size > 0.0 ? error / size : std::numeric_limits<double>::infinity();
}

// std::max would drop a NaN.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// Length of each row in a metric, [N].
at::Tensor lengths(const at::Tensor& rows, const at::Tensor& metric) {
  return (at::matmul(rows, metric) * rows).sum(-1).clamp_min(0.0).sqrt();
}

}  // namespace

bool TransformCheck::sound() const {
  return change <= kMostChange && bf16 <= std::max(kMostGrowth * plain, kFineAnyway);
}

void TransformCheck::add(const TransformCheck& other) {
  change = larger(other.change, change);
  bf16 = larger(other.bf16, bf16);
  plain = larger(other.plain, plain);
}

TransformCheck check_transform(const HeadProblem& p) {
  const bool key = p.side == Side::kKey;
  const at::Tensor& original = key ? p.k : p.v;
  const at::Tensor rows = p.mean.defined() ? original - p.mean : original;
  const at::Tensor back = !p.back.defined() ? (key ? p.forward : p.forward.t()) : p.back;
  const at::Tensor stored = at::matmul(rows, p.forward);
  const auto rounded = [](const at::Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); };
  TransformCheck out;
  if (key) {
    const at::Tensor q = p.q.narrow(0, 0, std::min(kMostQueries, p.q.size(0)));
    const at::Tensor query = at::matmul(q, back);
    const at::Tensor exact = at::matmul(wide(q), wide(rows).t());
    const auto error = [&](const at::Tensor& keys) { return wide(at::matmul(query, keys.t())) - exact; };
    const double size = exact.norm().item<double>();
    out.change = over(largest(error(stored)), largest(exact));
    out.bf16 = over(error(rounded(stored)).norm().item<double>(), size);
    out.plain = over((at::matmul(wide(q), wide(rounded(rows)).t()) - exact).norm().item<double>(), size);
    return out;
  }
  const at::Tensor exact = wide(rows), sizes = lengths(exact, p.output_metric);
  const auto error = [&](const at::Tensor& values) {
    return lengths(wide(at::matmul(values, back)) - exact, p.output_metric);
  };
  const double size = sizes.norm().item<double>();
  out.change = over(largest(error(stored)), largest(sizes));
  out.bf16 = over(error(rounded(stored)).norm().item<double>(), size);
  out.plain = over(lengths(wide(rounded(rows)) - exact, p.output_metric).norm().item<double>(), size);
  return out;
}

}  // namespace oscar
