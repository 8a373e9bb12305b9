#include "codec/feedback.h"

#include <cmath>
#include <string>

#include "base/errors.h"

namespace oscar {

FeedbackMetric::FeedbackMetric(const float* blocks, const RowCode& code) : n_(code.scale_channels()) {
  const auto n = static_cast<std::size_t>(n_), d = static_cast<std::size_t>(code.head_dim);
  matrix_.assign(blocks, blocks + d * n);
  offset_.assign(d, 0.0f);
  for (std::size_t i = 0; i < matrix_.size(); ++i) {
    if (!std::isfinite(matrix_[i])) {
      throw InputError("the metric of encoder feedback holds NaN or infinity in row " + std::to_string(i / n));
    }
  }
  for (std::size_t first = 0; first < d; first += n) {
    float* h = matrix_.data() + first * n;
    bool flat = true;
    for (std::size_t i = 0; i < n * n; ++i) flat = flat && h[i] == (i % (n + 1) == 0 ? h[0] : 0.0f);
    flat_.push_back(flat ? 1 : 0);
    if (!code.zero_points()) continue;
    std::vector<double> sums(n, 0.0);
    double total = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) sums[j] += static_cast<double>(h[i * n + j]);
    }
    for (const double sum : sums) total += sum;
    if (!(total > 0.0)) {  // an offset has no cost, so any would do: use the plain mean
      for (std::size_t j = 0; j < n; ++j) offset_[first + j] = 1.0f / static_cast<float>(n);
      continue;
    }
    for (std::size_t i = 0; i < n; ++i) {
      offset_[first + i] = static_cast<float>(sums[i] / total);
      for (std::size_t j = 0; j < n; ++j) {
        h[i * n + j] = static_cast<float>(static_cast<double>(h[i * n + j]) - sums[i] * sums[j] / total);
      }
    }
  }
}

}  // namespace oscar
