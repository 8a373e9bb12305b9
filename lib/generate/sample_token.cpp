#include "generate/sample_token.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/parallel.h"

namespace oscar {
namespace {

constexpr std::int64_t kRun = 1024;  // tokens whose weights a GPU adds up per run

double require_finite(double total) {
  if (std::isfinite(total)) return total;
  throw NumericalError(
      "the model's logits hold NaN or infinity while it writes calibration text; check the checkpoint, or try "
      "--dtype float32");
}

// The first index of weights [count] at which `below` plus the sum so far exceeds `limit`. If rounding leaves the sum
// below it: the last index with a weight. below: in, the sum before the first index; out, the sum before the returned
// index.
std::int64_t first_above(const double* weights, std::int64_t count, double limit, double& below) {
  std::int64_t last = 0;
  double before_last = below, sum = below;
  for (std::int64_t i = 0; i < count; ++i) {
    if (weights[i] <= 0.0) continue;
    last = i, before_last = sum;
    sum += weights[i];
    if (sum > limit) break;
  }
  below = before_last;
  return last;
}

}  // namespace

std::int32_t sample_token(const float* logits, std::int64_t vocabulary, double unit) {
  const float highest = *std::max_element(logits, logits + vocabulary);
  std::vector<double> weights(static_cast<std::size_t>(vocabulary));
  double total = 0.0;
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    total += weights[static_cast<std::size_t>(i)] = std::exp(static_cast<double>(logits[i]) - highest);
  }
  double below = 0.0;
  return static_cast<std::int32_t>(first_above(weights.data(), vocabulary, unit * require_finite(total), below));
}

std::vector<std::int32_t> sample_tokens(const at::Tensor& logits, std::int64_t vocabulary,
                                        const std::vector<double>& units) {
  if (logits.is_cuda()) return sample_in_runs(logits, vocabulary, units);
  std::vector<std::int32_t> tokens(units.size());
  const float* rows = logits.const_data_ptr<float>();
  const std::int64_t width = logits.size(1);
  parallel_ranges(std::ssize(units), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto r = static_cast<std::size_t>(row);
      tokens[r] = sample_token(rows + row * width, vocabulary, units[r]);
    }
  });
  return tokens;
}

std::vector<std::int32_t> sample_in_runs(const at::Tensor& logits, std::int64_t vocabulary,
                                         const std::vector<double>& units) {
  const std::int64_t rows = std::ssize(units), runs = (vocabulary + kRun - 1) / kRun;
  const at::Tensor known = logits.narrow(1, 0, vocabulary).to(at::kDouble);
  const at::Tensor weights =
      at::constant_pad_nd((known - known.amax(1, true)).exp(), {0, runs * kRun - vocabulary}).view({rows, runs, kRun});
  const at::Tensor sums = weights.sum(2).cpu();  // [rows, runs]
  std::vector<std::int64_t> chosen(units.size());
  std::vector<double> limit(units.size()), below(units.size(), 0.0);
  for (std::size_t r = 0; r < units.size(); ++r) {
    const double* of_row = sums.const_data_ptr<double>() + static_cast<std::int64_t>(r) * runs;
    double total = 0.0;
    for (std::int64_t i = 0; i < runs; ++i) total += of_row[i];
    limit[r] = units[r] * require_finite(total);
    chosen[r] = first_above(of_row, runs, limit[r], below[r]);
  }
  const at::Tensor index = at::tensor(chosen).to(logits.device()).view({rows, 1, 1}).expand({rows, 1, kRun});
  const at::Tensor run = weights.gather(1, index).view({rows, kRun}).cpu();
  std::vector<std::int32_t> tokens(units.size());
  for (std::size_t r = 0; r < units.size(); ++r) {
    const double* of_row = run.const_data_ptr<double>() + static_cast<std::int64_t>(r) * kRun;
    tokens[r] = static_cast<std::int32_t>(chosen[r] * kRun + first_above(of_row, kRun, limit[r], below[r]));
  }
  return tokens;
}

}  // namespace oscar
